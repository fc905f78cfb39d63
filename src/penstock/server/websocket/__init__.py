"""The WebSocket `/api/v1/stream`: `start_http(…, stream=WebSockets(broker).serve)`."""

from penstock.server.websocket.conversation import WebSockets

__all__ = ["WebSockets"]
