"""Running the ASGI application for one request whose body is whole; its response leaves in one piece."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final
from urllib.parse import quote, unquote

import httptools
from starlette.types import Message, Scope

from penstock.errors import BadRequest, Internal
from penstock.server.http.exchange import Exchange

logger: Final = logging.getLogger("penstock.http")
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
_OWN_HEADERS: Final = (b"connection", b"date", b"transfer-encoding")  # the connection's business


def run_app(exchange: Exchange) -> None:
    """Hand a request to the application, in a task of its own."""
    site = exchange.site
    call = _Call(exchange, _scope(exchange))
    site.spawn(call.run(site.app))


def _scope(exchange: Exchange) -> Scope:
    try:
        url = httptools.parse_url(exchange.path)
    except httptools.HttpParserInvalidURLError:
        raise BadRequest("the URL cannot be read") from None
    path = url.path or b"/"
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": "1.1",
        "server": None,
        "client": (exchange.address, 0),
        "scheme": "http",
        "method": exchange.method.decode("ascii"),
        "root_path": "",
        "path": _path(path),
        "raw_path": path,
        "query_string": url.query or b"",
        "headers": exchange.all_headers,
        "request_id": exchange.request_id.decode(),
        "penstock.client": exchange.client,
        "penstock.is_proxied": exchange.protocol.is_proxied,
    }


def _path(raw: bytes) -> str:
    """The path to look a route up by: what is encoded in a part of it, a slash above all, stays within that part."""
    try:
        return "/".join(quote(unquote(part, errors="strict"), safe="") for part in raw.decode().split("/"))
    except UnicodeDecodeError:
        raise BadRequest("the path is not UTF-8") from None


class _Call:
    """What the application gets for one request, and what it gives."""

    def __init__(self, exchange: Exchange, scope: Scope) -> None:
        self._exchange = exchange
        self._scope = scope
        self._body: bytes | None = exchange.body
        self._status = 500
        self._headers: list[tuple[bytes, bytes]] = []
        self._chunks: list[bytes] = []
        self._gone = asyncio.Event()
        exchange.on_gone = self._gone.set

    async def run(self, app: Any) -> None:
        exchange = self._exchange
        try:
            await app(self._scope, self._receive, self._send)
        except Exception:  # a fault in one request must not take the connection down without an answer
            logger.exception("internal error in an HTTP request", extra={"request_id": exchange.request_id.decode()})
        if not exchange.response_complete:
            exchange.fail(Internal("internal error in the broker"))

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [(name.lower(), value) for name, value in message.get("headers", ())]
        else:
            self._chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                self._respond()

    def _respond(self) -> None:
        body, names = b"".join(self._chunks), {name for name, _ in self._headers}
        if (b"connection", b"close") in self._headers:
            self._exchange.keep_alive = False
        lines = [b"%b: %b\r\n" % header for header in self._headers if header[0] not in _OWN_HEADERS]
        if b"content-length" not in names and self._status not in {204, 304}:
            lines.append(b"content-length: %d\r\n" % len(body))
        self._exchange.respond(self._status, b"".join(lines), body)
