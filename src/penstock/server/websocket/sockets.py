"""All sockets of a broker: the handshake, who is there, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.broker import Broker, Client, Principal
from penstock.server.websocket.conversation import Conversation

REFUSED: Final = 1008
CLOSE_SECONDS: Final = 1.0


class WebSockets:
    """All open sockets of a broker."""

    def __init__(self, broker: Broker, cors_origins: Sequence[str] = ()) -> None:
        self._broker = broker
        self._origins = frozenset(cors_origins)
        self._open: set[Conversation] = set()

    async def serve(self, socket: WebSocket) -> None:
        """One socket, from the handshake to its end."""
        if not self._is_allowed(socket):
            await socket.close(REFUSED, "pages of this origin are not allowed; see cors_origins")
            return
        await socket.accept()
        name, address = socket.headers.get("user-agent", ""), socket.client.host if socket.client else ""
        conversation = Conversation(self._broker, Client(Principal(), name, address, "websocket"), socket)
        self._open.add(conversation)
        self._broker.meter.connected("websocket")
        try:
            if self._broker.is_draining:
                conversation.goodbye()
            await conversation.run()
        finally:
            self._broker.meter.disconnected("websocket")
            self._open.discard(conversation)

    def goodbye(self) -> None:
        """The broker stops: tell everyone. What was delivered may still be settled."""
        for conversation in self._open:
            conversation.goodbye()

    async def close(self) -> None:
        """End every socket."""
        for conversation in [*self._open]:
            with suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
                await asyncio.wait_for(conversation.close(), CLOSE_SECONDS)

    def _is_allowed(self, socket: WebSocket) -> bool:
        """Programs send no origin; pages must be of this server or of an origin that is configured."""
        origin = socket.headers.get("origin")
        if origin is None or origin in self._origins or "*" in self._origins:
            return True
        return origin.partition("://")[2] == socket.headers.get("host")
