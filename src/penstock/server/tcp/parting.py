"""Sending a client away so that it learns why.

A connection that is closed on bytes that nobody has read is reset, and the reason that was sent is lost with it. So the
client is sent the end, and heard out for a moment: until it closes too, or has had its time, or does not stop talking.
"""

from __future__ import annotations

import asyncio
from typing import Final

SECONDS_MAX: Final = 1.0
BYTES_MAX: Final = 1 << 20


class Parting(asyncio.Protocol):
    """Hears, and does nothing."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._bytes = 0

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > BYTES_MAX:
            self._transport.abort()


def send_end(transport: asyncio.Transport) -> None:
    """Tell the client that nothing more comes. One that has reset the connection meanwhile hears nothing any more."""
    try:
        transport.write_eof()
    except OSError:
        transport.abort()


def part(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> bool:
    """End a connection whose last bytes have been written; its protocol hears no more of it. False: it has ended."""
    if transport.is_closing():
        return False
    transport.set_protocol(Parting(transport))
    transport.resume_reading()
    send_end(transport)
    loop.call_later(SECONDS_MAX, transport.abort)
    return True
