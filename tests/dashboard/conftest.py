"""One browser, one broker with a shop in it, and a signed-in page for each test, whose console must stay empty."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.support.broker_process import PATIENCE_SECONDS, Served
from tests.support.chromium import chromium
from tests.support.dashboard import build_dashboard

PASSWORD = "a password of the tests"
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
HUGE = 123456789012345678901234567890


class Shop:
    """A broker with something to see on every page."""

    def __init__(self, folder: Path, *flags: str, is_filled: bool = True) -> None:
        self._flags = flags
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
            self._folder, "--auth", "on", "--data", "data", "--http-port", self.port, "--grpc-port", "off",
            "--durability", "os", *self._flags, XDG_RUNTIME_DIR=str(self._runtime),
        )  # fmt: skip
        self.port = str(self.served.port("http"))
        self.origin = f"http://localhost:{self.port}"
        name, _, value = Path(self.served.ready["header_file"]).read_text().strip().partition(": ")
        self.api.close()
        self.api = httpx.Client(base_url=f"{self.origin}/api/v1", headers={name: value}, timeout=PATIENCE_SECONDS)

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
        self.do("POST", "/tasks", {"task_type": "send_mail", "queue": "mail", "args": ["ann@example.com"]})
        self.do("PUT", "/schedules/nightly", {"cron": "0 3 * * *", "task_type": "report", "queue": "reports"})
        run = {"status": "done", "summary": "20 messages of one queue", "queues": ["shop.orders"]}
        report = f"<style>h1 {{ color: red }}</style><h1>Roll-up</h1>{HOSTILE}"
        self.do("PUT", "/pipelines/rollup/runs/run-1", run | {"report": report, "started_at": "2026-01-31T09:00:00Z"})
        self.do("PUT", "/users/viewer", {"grants": ["viewer"], "password": PASSWORD})
        self.do("PUT", "/users/reader", {"grants": ["reader:shop.*"], "password": PASSWORD})

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


class Dashboard:
    """A page of the dashboard."""

    def __init__(self, shop: Shop, context: BrowserContext) -> None:
        self.shop = shop
        self.page: Page = context.new_page()
        self.said: list[str] = []
        self.ignored: tuple[str, ...] = ()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))

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

    def ignore_network(self) -> None:
        """What the browser itself says about requests that were refused, or reached nobody, is expected."""
        self.ignored = ("Failed to load resource", "WebSocket connection to")

    def row(self, table: str, text: str) -> Any:
        return self.page.get_by_role("table", name=table, exact=True).get_by_role("row").filter(has_text=text)


Opener = Callable[..., Dashboard]


@pytest.fixture
def opener(browser: Browser, shop: Shop) -> Iterator[Opener]:
    """Opens dashboards, each in a profile of its own; their consoles are empty at the end."""
    opened: list[tuple[BrowserContext, Dashboard]] = []

    def open_one(**options: Any) -> Dashboard:
        context = browser.new_context(**options)
        context.set_default_timeout(30_000)
        dashboard = Dashboard(shop, context)
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


def sizes() -> dict[str, Any]:
    """What the build wrote about its files."""
    from tests.support.dashboard import STATIC

    loaded: dict[str, Any] = json.loads((STATIC / "sizes.json").read_text())
    return loaded
