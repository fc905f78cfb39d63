"""The WebSocket `/api/v1/stream`. Mount `WebSockets(broker, cors_origins).serve` as a Starlette route."""

from penstock.server.websocket.sockets import WebSockets

__all__ = ["WebSockets"]
