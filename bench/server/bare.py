"""Bare servers: what the same library does when it has nothing to do. `python -m bench.server.bare echo|asgi`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvicorn
import uvloop


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def echo() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=4096)
    say(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body and sends it back."""
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message.get("more_body"):
            break
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def asgi() -> None:
    config = uvicorn.Config(asgi_app, port=0, log_level="error", access_log=False, http="httptools", lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    say(server.servers[0].sockets[0].getsockname()[1])
    await task


def say(port: int) -> None:
    print(json.dumps({"addresses": {"bare": {"port": port}}}), flush=True)


if __name__ == "__main__":
    uvloop.run({"echo": echo, "asgi": asgi}[sys.argv[1]]())
