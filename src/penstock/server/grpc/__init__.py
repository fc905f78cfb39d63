"""gRPC: the services `penstock.v1.Queues` and `penstock.v1.Tasks` of protos/, with reflection and health.

It needs the extra `penstock[grpc]`. This module can be imported without it; starting the server says what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import limits
from penstock.errors import InvalidField

if TYPE_CHECKING:
    from penstock.broker import Broker
    from penstock.server.grpc.service import GrpcServer


async def start_grpc(
    broker: Broker,
    host: str,
    port: int,
    *,
    request_bytes_max: int = limits.frame_bytes_max,
    connections_max: int = limits.connections_max,
) -> GrpcServer:
    """Serve on the running loop; port 0 takes any free one."""
    try:
        from penstock.server.grpc import service
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("grpc", "grpc_health", "grpc_reflection", "google"):
            raise
        hint = "pip install 'penstock[grpc]', or set grpc_port to 'off'"
        raise InvalidField(f"grpc_port: gRPC needs {error.name}, which is not installed", hint=hint) from None
    return await service.start(broker, host, port, request_bytes_max, connections_max)


__all__ = ["start_grpc"]
