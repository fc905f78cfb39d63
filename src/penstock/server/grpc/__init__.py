"""gRPC: the services `penstock.v1.Queues` and `penstock.v1.Tasks` of protos/, with reflection and health.

It needs the extra `penstock-mq[grpc]`. This module can be imported without it; starting the server says what is
missing.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Final

from penstock import limits
from penstock.errors import InvalidField

if TYPE_CHECKING:
    from penstock.access.tls import ServerTls
    from penstock.broker.broker import Broker
    from penstock.server.grpc.service import GrpcServer

logger: Final = logging.getLogger("penstock.server.grpc")
_CIPHERS_VARIABLE: Final = "GRPC_SSL_CIPHER_SUITES"


async def start_grpc(
    broker: Broker,
    host: str,
    port: int,
    *,
    request_bytes_max: int = limits.frame_bytes_max,
    connections_max: int = limits.connections_max,
    tls: ServerTls | None = None,
) -> GrpcServer:
    """Serve on the running loop; port 0 takes any free one."""
    if tls is not None:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # or it writes a line of its own about every bad handshake
        if tls.minimum == "1.3":
            _refuse_tls_1_2()
    try:
        from penstock.server.grpc import service
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("grpc", "grpc_health", "grpc_reflection", "google"):
            raise
        hint = "pip install 'penstock-mq[grpc]', or set grpc_port to 'off'"
        raise InvalidField(f"grpc_port: gRPC needs {error.name}, which is not installed", hint=hint) from None
    return await service.start(broker, host, port, request_bytes_max, connections_max, tls)


def _refuse_tls_1_2() -> None:
    """Leave TLS 1.2 without a cipher, for gRPC has no setting for the version.

    It takes a list of ciphers from the environment when it is loaded; those of TLS 1.3 are not in it. The one that is
    left needs a shared secret, which nobody has.
    """
    if "grpc" in sys.modules and _CIPHERS_VARIABLE not in os.environ:
        logger.warning("gRPC was loaded before: its port takes TLS 1.2 too")
    os.environ.setdefault(_CIPHERS_VARIABLE, "ECDHE-PSK-CHACHA20-POLY1305")


__all__ = ["start_grpc"]
