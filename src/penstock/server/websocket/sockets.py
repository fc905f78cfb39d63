"""All sockets of a broker: who is there, and the end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from penstock.broker import Broker, Client, Principal
from penstock.server.websocket.conversation import Conversation
from penstock.server.websocket.socket import Disconnected, Socket

CLOSE_SECONDS: Final = 1.0


class WebSockets:
    """All open sockets of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._open: set[Conversation] = set()

    async def serve(self, socket: Socket) -> None:
        """One socket, until its end."""
        client = Client(Principal(), socket.client_name, socket.address, "websocket")
        conversation = Conversation(self._broker, client, socket)
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
            with suppress(Disconnected, TimeoutError):
                await asyncio.wait_for(conversation.close(), CLOSE_SECONDS)
