"""Making the messages of a compiled file of protocol buffers.

This takes the place of the code that the compiler would write, which refuses runtimes older than the compiler.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf import struct_pb2 as _struct  # what the descriptors refer to must be known before them
from google.protobuf import timestamp_pb2 as _timestamp

_NEEDED = (_struct, _timestamp)


def load(source: str) -> tuple[Any, dict[str, Any]]:
    """The descriptor of a file, and its messages and the values of its enumerations by their names."""
    compiled = descriptor_pb2.FileDescriptorSet.FromString((files(__package__) / f"{source}.binpb").read_bytes())
    pool: Any = descriptor_pool.Default()
    pool.AddSerializedFile(compiled.file[0].SerializeToString())
    descriptor = pool.FindFileByName(compiled.file[0].name)
    names: dict[str, Any] = {}
    for name, message in descriptor.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for enum in descriptor.enum_types_by_name.values():
        names |= {value.name: value.number for value in enum.values}
    return descriptor, names
