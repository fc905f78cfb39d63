"""The messages of `penstock.v1` about tasks, workers, made from the compiled descriptors when first imported."""

from __future__ import annotations

from penstock.server.grpc.generated.loading import load

DESCRIPTOR, _names = load("tasks")
globals().update(_names)
