"""The messages of `penstock.v1` about queues, made from the compiled descriptors when first imported."""

from __future__ import annotations

from penstock.server.grpc.generated.loading import load

DESCRIPTOR, _names = load("queues")
globals().update(_names)
