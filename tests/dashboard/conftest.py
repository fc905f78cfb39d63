"""One browser, one broker with a shop in it, and a signed-in page for each test, whose console must stay empty."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.dashboard.page_table import TRACE
from tests.support.broker_process import PATIENCE_SECONDS, Served
from tests.support.chromium import chromium
from tests.support.dashboard import build_dashboard

expect.set_options(timeout=20_000)
PASSWORD = "a password of the tests"
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
HUGE = 123456789012345678901234567890
PREFIX = "/tools/queue"


class Shop:
    """A broker with something to see on every page."""

    def __init__(self, folder: Path, *flags: str, is_filled: bool = True, auth: str = "on") -> None:
        self._flags, self._auth = flags, auth
        self.task = ""
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700, exist_ok=True)
        self._folder, self._runtime = folder, runtime
        self.api = httpx.Client()
        self.port = "0"
        self.start()
        if is_filled:
            self._fill()

    def start(self) -> None:
        self.served = Served(
            self._folder, "--auth", self._auth, "--data", "data", "--http-port", self.port, "--grpc-port", "off",
            "--durability", "os", *self._flags, XDG_RUNTIME_DIR=str(self._runtime),
        )  # fmt: skip
        self.port = str(self.served.port("http"))
        self.origin = f"http://localhost:{self.port}"
        self.api.close()
        self.api = httpx.Client(base_url=f"{self.origin}/api/v1", headers=self._headers(), timeout=PATIENCE_SECONDS)

    def _headers(self) -> dict[str, str]:
        if self._auth == "off":
            return {}
        name, _, value = Path(self.served.ready["header_file"]).read_text().strip().partition(": ")
        return {name: value}

    def do(self, method: str, path: str, body: Any = None) -> Any:
        response = self.api.request(method, path, json=body)
        response.raise_for_status()
        return response.json() if response.content else None

    def push(self, queue: str, *payloads: Any, **options: Any) -> None:
        self.do("POST", f"/queues/{queue}/messages", {"messages": [{"payload": one} | options for one in payloads]})

    def fail(self, queue: str, error: str) -> None:
        """Lease everything that is ready and make dead letters of it."""
        leased = self.do("POST", f"/queues/{queue}/lease", {"max": 100})["messages"]
        self.do("POST", "/reject", {"receipts": [message["receipt"] for message in leased], "reason": error})

    def _fill(self) -> None:
        self.do("POST", "/queues", {"name": "shop.orders", "partitions": 2, "max_attempts": 3})
        self.push("shop.orders", *({"order": number, "currency": None} for number in range(3)))
        self.fail("shop.orders", "TypeError: currency of order 7 is None")
        self.push("shop.orders", *({"order": number, "currency": "EUR"} for number in range(20)), key="ann")
        self.do("POST", "/queues/shop.orders/groups", {"name": "billing", "start": "earliest"})
        self.push("legacy", "waits")
        self.do("POST", "/queues/legacy/pause")
        self.push("hostile", HOSTILE, {"\u202eright to left": "\u05d0"}, headers={"html": HOSTILE})
        self.api.post("/queues/hostile/messages", content=f'{{"messages": [{{"payload": {HUGE}}}]}}')
        self.do("POST", "/queues/hostile/messages", {"messages": [{"payload_base64": "/v8AAQ=="}]})
        self.push("hostile", {"blob": "x" * 1_000_000})
        mail = {"task_type": "send_mail", "queue": "mail", "args": ["ann@example.com"]}
        self.task = self.do("POST", "/tasks", mail)["tasks"][0]["task_id"]
        self.do("PUT", "/schedules/nightly", {"cron": "0 3 * * *", "task_type": "report", "queue": "reports"})
        run = {"status": "done", "summary": "20 messages of one queue", "queues": ["shop.orders"]}
        report = f"<style>h1 {{ color: red }}</style><h1>Roll-up</h1>{HOSTILE if self._auth == 'on' else ''}"
        self.do("PUT", "/pipelines/rollup/runs/run-1", run | {"report": report, "started_at": "2026-01-31T09:00:00Z"})
        self._fill_details()
        if self._auth == "on":
            self.do("PUT", "/users/viewer", {"grants": ["viewer"], "password": PASSWORD})
            self.do("PUT", "/users/reader", {"grants": ["reader:shop.*"], "password": PASSWORD})

    def _fill_details(self) -> None:
        """What pages of one thing show: a workflow, a worker, a trace, a lease, an operation; and an empty queue."""
        self.do("POST", "/queues", {"name": "idle"})
        self.hold()
        self.push("traced", 1, trace=TRACE)
        parent = self.do("POST", "/tasks", {"task_type": "extract", "queue": "flow", "workflow": "wf-shop"})
        needs = [parent["tasks"][0]["task_id"]]
        self.do("POST", "/tasks", {"task_type": "load", "queue": "flow", "workflow": "wf-shop", "depends_on": needs})
        self.do("POST", "/tasks/cancel", {"queue": "nothing-there"})
        self.beat()

    def hold(self) -> None:
        """Lease a message for an hour."""
        self.do("POST", "/queues/shop.orders/lease", {"max": 1, "consumer": "checkout-1", "lease_ms": 3_600_000})

    def beat(self) -> None:
        """A heartbeat of the worker."""
        about = {"queues": ["mail"], "task_types": ["send_mail"], "concurrency": 4}
        self.do("POST", "/workers/worker-1/heartbeat", about | {"host": "h", "pid": 7, "version": "1"})

    def link(self) -> str:
        """A one-time link that signs the owner in."""
        return self.origin + str(self.do("POST", "/sessions/links")["path"])

    def close(self) -> None:
        self.api.close()
        self.served.__exit__()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    build_dashboard()
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="package")
def shop(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    yield shop
    shop.close()


@pytest.fixture
def open_shop(browser: Browser, tmp_path: Path) -> Iterator[Shop]:
    """A shop where nobody signs in."""
    shop = Shop(tmp_path, "--audit", "on", auth="off")
    yield shop
    shop.close()


@pytest.fixture
def prefixed(browser: Browser, tmp_path: Path) -> Iterator[Shop]:
    """A shop where nobody signs in, shown under a path by a proxy."""
    shop = Shop(tmp_path, "--audit", "on", "--http-prefix", PREFIX, auth="off")
    yield shop
    shop.close()


class Dashboard:
    """A page of the dashboard."""

    def __init__(self, shop: Shop, context: BrowserContext) -> None:
        self.shop, self.context = shop, context
        self.page: Page = context.new_page()
        self.said: list[str] = []
        self.ignored: tuple[str, ...] = ()
        self.listen(self.page)

    def listen(self, page: Page) -> None:
        """Note what a page writes to its console."""
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))

    def tab_secret(self) -> str:
        """What another tab needs to share the session."""
        return str(self.page.evaluate("sessionStorage.getItem('penstock-tab')"))

    def sign_in(self) -> None:
        self.page.goto(self.shop.link())
        expect(self.page.locator(".who")).to_contain_text("owner")

    def sign_in_as(self, user: str) -> None:
        self.page.goto(f"{self.shop.origin}/ui/")
        self.page.fill("#user", user)
        self.page.fill("#password", PASSWORD)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.locator(".who")).to_contain_text(user)

    def open(self, path: str, heading: str) -> None:
        self.page.goto(f"{self.shop.origin}/ui/{path}")
        expect(self.page.get_by_role("heading", level=1)).to_have_text(heading)

    def type_filter(self, text: str) -> None:
        """Type into the filter of the page; the key that leads there does nothing before it is drawn."""
        expect(self.page.locator("[data-filter]").first).to_be_visible()
        self.page.keyboard.press("/")
        expect(self.page.locator("[data-filter]").first).to_be_focused()
        self.page.keyboard.type(text)

    def ignore_network(self) -> None:
        """What the browser itself notes is expected: requests that were refused, or reached nobody."""
        self.ignored = ("Failed to load resource", "WebSocket connection to")

    def row(self, table: str, text: str) -> Any:
        return self.page.get_by_role("table", name=table, exact=True).get_by_role("row").filter(has_text=text)


Opener = Callable[..., Dashboard]


@pytest.fixture
def opener(browser: Browser, shop: Shop) -> Iterator[Opener]:
    """Opens dashboards, each in a profile of its own; their consoles are empty at the end."""
    opened: list[tuple[BrowserContext, Dashboard]] = []

    def open_one(of: Shop = shop, **options: Any) -> Dashboard:
        context = browser.new_context(**options)
        context.set_default_timeout(30_000)
        dashboard = Dashboard(of, context)
        opened.append((context, dashboard))
        return dashboard

    yield open_one
    said = [
        text for _, dashboard in opened for text in dashboard.said if not text.startswith(dashboard.ignored or ("\0",))
    ]
    for context, _ in opened:
        context.close()
    assert said == []


@pytest.fixture
def dashboard(opener: Opener) -> Dashboard:
    opened = opener()
    opened.sign_in()
    return opened


class Prefixed(BaseHTTPRequestHandler):
    """Forwards requests below a path to the broker."""

    origin = ""

    def _forward(self) -> None:
        if not self.path.startswith(f"{PREFIX}/"):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "accept-encoding"}
        headers["x-forwarded-prefix"] = PREFIX
        url = self.origin + self.path.removeprefix(PREFIX)
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


class Proxy:
    """A proxy that shows a broker under a path, and knows no WebSockets."""

    def __init__(self, origin: str) -> None:
        handler = type("Handler", (Prefixed,), {"origin": origin})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}{PREFIX}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def sizes() -> dict[str, Any]:
    """What the build wrote about its files."""
    from tests.support.dashboard import STATIC

    loaded: dict[str, Any] = json.loads((STATIC / "sizes.json").read_text())
    return loaded
