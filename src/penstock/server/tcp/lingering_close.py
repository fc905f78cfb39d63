"""Closing a connection so that the client receives why.

A connection that is closed while bytes of the client are unread is reset, and the reason that was sent is lost with it.
So the write side is closed first, and what the client still sends is read and dropped: until it closes too, or
`SECONDS_MAX` or `BYTES_MAX` are reached. TLS cannot close one side: there the client has `TLS_SECONDS` to read why.
"""

from __future__ import annotations

import asyncio
from typing import Final

SECONDS_MAX: Final = 1.0
TLS_SECONDS: Final = 0.25
BYTES_MAX: Final = 1 << 20


class LingeringClose(asyncio.Protocol):
    """Reads what the client still sends, and drops it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._bytes = 0

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > BYTES_MAX:
            self._transport.abort()


def send_end(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Close the write side. A client may have reset the connection meanwhile."""
    if not transport.can_write_eof():
        loop.call_later(TLS_SECONDS, transport.close)
        return
    try:
        transport.write_eof()
    except OSError:
        transport.abort()


def close_lingering(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> bool:
    """Close a connection whose last bytes have been written; its protocol gets no more calls. False: it has ended."""
    if transport.is_closing():
        return False
    transport.set_protocol(LingeringClose(transport))
    transport.resume_reading()
    send_end(transport, loop)
    loop.call_later(SECONDS_MAX, transport.abort)
    return True
