"""A real Chromium, and servers of somebody else for it to visit.

Every name below resolves to this machine. `EVIL` is another site. Another port of `localhost` is another origin of the
same site: the browser sends it the broker's cookies. `REBOUND` is a name of somebody else that points to the broker.
"""

from __future__ import annotations

import os
import shutil
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES: Final = ("chromium-headless-shell", "chromium")
EVIL: Final = "evil.test"
REBOUND: Final = "rebound.test"
# What Chromium itself does against pages that reach into this machine is off: the broker must not need it.
HELP: Final = ("LocalNetworkAccessChecks", "HttpsUpgrades", "HttpsFirstBalancedModeAutoEnable")


def executable() -> str:
    """The path of a Chromium; without one the test fails, and says how to install it."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail("there is no chromium-headless-shell or chromium: `make browser` installs it on Debian, as root")
    return path


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    rules = ",".join(f"MAP {name} 127.0.0.1" for name in (EVIL, REBOUND))
    args = [f"--host-resolver-rules={rules}", f"--disable-features={','.join(HELP)}"]
    if os.geteuid() == 0:
        args.append("--no-sandbox")  # Chromium's own does not work for root
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=args)
        try:
            yield browser
        finally:
            browser.close()


class Seen(NamedTuple):
    """A request that a server of somebody else received."""

    method: str
    path: str
    cookie: str
    origin: str


class Elsewhere:
    """A server of somebody else: an empty page at every path, and a list of what was asked of it.

    The page at `/quiet` sends no referrer, so that its forms have the origin `null`.
    """

    def __init__(self, tls: dict[str, str] | None = None) -> None:
        self.seen: list[Seen] = []
        handler = type("Handler", (_Page,), {"seen": self.seen})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._scheme = "https" if tls else "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls["tls_certificate"], tls["tls_key"])
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def url(self, host: str) -> str:
        return f"{self._scheme}://{host}:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Browsers open connections that they do not use, and leave in the middle of others."""


class _Page(BaseHTTPRequestHandler):
    seen: list[Seen]
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        headers = self.headers
        self.rfile.read(int(headers.get("content-length") or 0))
        self.seen.append(Seen(self.command, self.path, headers.get("cookie", ""), headers.get("origin", "")))
        body = b"<!doctype html><title>elsewhere</title>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        if self.path == "/quiet":
            self.send_header("referrer-policy", "no-referrer")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _answer  # noqa: N815 - the names of the base class

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""
