"""The messages of `penstock.v1` about tasks, workers, made from the compiled descriptors when first imported."""

from __future__ import annotations

from penstock.server.grpc.generated import queues_pb2 as _queues  # what the descriptors refer to is known before
from penstock.server.grpc.generated.loading import load

_NEEDED = (_queues,)
DESCRIPTOR, _names = load("tasks")
globals().update(_names)
