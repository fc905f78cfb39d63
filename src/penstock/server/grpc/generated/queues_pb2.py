"""The messages of `penstock.v1`, made from the compiled descriptors when first imported.

This takes the place of the code that the compiler would write, which refuses runtimes older than the compiler.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf import struct_pb2 as _struct  # what the descriptors refer to must be known before them
from google.protobuf import timestamp_pb2 as _timestamp

_NEEDED = (_struct, _timestamp)

_compiled = descriptor_pb2.FileDescriptorSet.FromString((files(__package__) / "queues.binpb").read_bytes())
_pool: Any = descriptor_pool.Default()
_pool.AddSerializedFile(_compiled.file[0].SerializeToString())
DESCRIPTOR = _pool.FindFileByName(_compiled.file[0].name)

for _name, _message in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = message_factory.GetMessageClass(_message)
for _enum in DESCRIPTOR.enum_types_by_name.values():
    globals().update({value.name: value.number for value in _enum.values})
