"""How the files are served: sizes, caching, compression, the policy, and behind a prefix."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx
from playwright.sync_api import expect

from penstock.cli.serve import _say
from penstock.dashboard.files import NO_BANNER, Files
from tests.dashboard.conftest import sizes


def loaded_with(name: str, files: dict[str, Any], seen: set[str]) -> int:
    """Bytes of a script and of all that it imports at once, in brotli."""
    if name in seen:
        return 0
    seen.add(name)
    return int(files[name]["brotli"]) + sum(loaded_with(other, files, seen) for other in files[name]["imports"])


def test_the_pages_stay_within_their_budget(browser):
    files = sizes()
    main = next(name for name in files if name.startswith("main-"))
    style = next(size["brotli"] for name, size in files.items() if name.endswith(".css"))
    pages = {size["entry"]: name for name, size in files.items() if size["entry"] and "/pages/" in size["entry"]}

    def bytes_of(name: str) -> int:
        seen: set[str] = set()
        return int(style) + loaded_with(main, files, seen) + loaded_with(name, files, seen)

    assert bytes_of(pages["src/pages/overview.tsx"]) <= 45_000
    assert max(bytes_of(name) for name in pages.values()) <= 90_000
    assert sum(size["brotli"] for size in files.values()) <= 150_000


def test_scripts_are_compressed_and_kept_for_good_and_the_page_is_not(shop):
    with httpx.Client(base_url=shop.origin, timeout=60) as client:
        page = client.get("/ui/")
        script = page.text.split('type="module" src="')[1].split('"')[0]
        sent = client.get(f"/ui/{script}", headers={"accept-encoding": "br"})
        known = client.get(f"/ui/{script}", headers={"if-none-match": sent.headers["etag"]})
        missing = client.get("/ui/main-OLD.js")
        deep = client.get("/ui/queues/shop.orders.js/messages")

    assert page.headers["cache-control"] == "no-cache"
    assert "require-trusted-types-for 'script'" in page.headers["content-security-policy"]
    assert sent.headers["content-encoding"] == "br"
    assert "immutable" in sent.headers["cache-control"]
    assert sent.headers["content-type"].startswith("text/javascript")
    assert (known.status_code, known.content) == (304, b"")
    assert missing.status_code == 404
    assert (deep.status_code, deep.text) == (200, page.text)


def test_without_a_build_the_broker_says_how_to_get_one(tmp_path):
    reply = Files(tmp_path).reply("")
    assert reply.status == 503
    assert b"make setup" in reply.content


def test_a_broker_without_a_build_says_so_when_it_starts(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("penstock.dashboard.files.Files.__init__.__defaults__", (tmp_path, NO_BANNER))
    address = SimpleNamespace(protocol="http", url="http://127.0.0.1:7711")
    started = SimpleNamespace(role="", durability="fsync", data="d", queues=0, addresses=[address], header_file="")
    _say(started)
    assert "Without its dashboard" in capsys.readouterr().out


def test_a_prefix_that_is_not_a_path_is_ignored(browser):
    page = Files().reply("", prefix='/x"><script>').content
    assert b'<base href="/ui/">' in page


class Prefixed(BaseHTTPRequestHandler):
    """A proxy that shows the broker under /tools/queue."""

    origin = ""

    def _forward(self) -> None:
        if not self.path.startswith("/tools/queue/"):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "accept-encoding"}
        headers["x-forwarded-prefix"] = "/tools/queue"
        url = self.origin + self.path.removeprefix("/tools/queue")
        answer = httpx.request(self.command, url, content=body, headers=headers)
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            if name not in {"content-length", "connection", "transfer-encoding", "content-encoding"}:
                self.send_header(name, value)
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = do_DELETE = do_PUT = _forward  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


def test_the_dashboard_works_under_a_path_of_a_proxy_without_websockets(browser, tmp_path):
    from tests.support.broker_process import Served

    flags = ("--data", "data", "--http-port", "0", "--grpc-port", "off", "--http-prefix", "/tools/queue")
    with Served(tmp_path, *flags) as served:
        origin = f"http://127.0.0.1:{served.port('http')}"
        httpx.post(f"{origin}/api/v1/queues", json={"name": "behind"}).raise_for_status()
        handler = type("Handler", (Prefixed,), {"origin": origin})
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{proxy.server_port}/tools/queue/ui/queues/behind")
            expect(page.get_by_role("heading", level=1)).to_have_text("behind")
            page.get_by_role("link", name="Queues", exact=True).first.click()
            # The proxy knows no WebSockets: after a few tries the page asks every few seconds.
            expect(page.get_by_role("row").filter(has_text="behind")).to_have_count(1, timeout=60_000)
            assert "/tools/queue/ui/queues" in page.url
            page.close()
        finally:
            proxy.shutdown()
            proxy.server_close()
            thread.join()
