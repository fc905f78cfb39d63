"""One browser and two brokers, with TLS and without, for all tests here; a fresh profile for each test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.support.broker_process import PATIENCE_SECONDS, Served
from tests.support.chromium import Elsewhere, chromium
from tests.support.dashboard import build_dashboard
from tests.support.tls import Certificates

PASSWORD = "a password of the tests"
CANARY = "canary-of-the-vault"
STATE = ("/queues/vault", "/schedules", "/tasks", "/workers", "/operations", "/keys", "/users", "/roles", "/namespaces")


class Target:
    """A broker with access control, something to steal in it, and a user who may do everything."""

    def __init__(self, folder: Path, tls: dict[str, str] | None = None) -> None:
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700)
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in (tls or {}).items()]
        self.served = Served(
            folder, "--auth", "on", "--data", "data", "--http-port", "0", "--grpc-port", "off", "--durability", "os",
            *flags, XDG_RUNTIME_DIR=str(runtime),
        )  # fmt: skip
        self.origin = f"{'https' if tls else 'http'}://localhost:{self.served.port('http')}"
        name, _, value = Path(self.served.ready["header_file"]).read_text().strip().partition(": ")
        self.owner = httpx.Client(
            base_url=f"{self.origin}/api/v1", headers={name: value}, verify=False, timeout=PATIENCE_SECONDS
        )
        self._fill()

    def _fill(self) -> None:
        self._do("POST", "/queues", {"name": "vault"})
        self._do("POST", "/queues/vault/messages", {"messages": [{"payload": CANARY}]})
        self._do("POST", "/queues/vault/groups", {"name": "audit", "start": "earliest"})
        self._do("PUT", "/schedules/nightly", {"cron": "0 3 1 1 *", "task_type": "report", "queue": "vault"})
        self._do("PUT", "/users/ann", {"grants": ["owner"], "password": PASSWORD})
        self._do("PUT", "/users/mallory", {"grants": ["viewer"], "password": PASSWORD})

    def _do(self, method: str, path: str, body: dict[str, Any]) -> None:
        self.owner.request(method, path, json=body).raise_for_status()

    def state(self) -> dict[str, Any]:
        """Everything that a request could have changed."""
        queues = [queue for queue in self._get("/stats")["queues"] if not queue["name"].startswith("penstock.")]
        return {"queues": queues} | {path: self._get(path) for path in STATE}

    def _get(self, path: str) -> Any:
        response = self.owner.get(path)
        response.raise_for_status()
        return response.json()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.owner.close()
        self.served.__exit__()


@pytest.fixture(scope="package", autouse=True)
def dashboard() -> None:
    """The dashboard of this source tree, built as the set-up builds it."""
    build_dashboard()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="package", params=["http", "https"])
def tls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str] | None:
    """Certificates, or None: over http a session needs the tab's secret, over https its cookie is enough."""
    return None if request.param == "http" else Certificates(tmp_path_factory.mktemp("certificates")).server()


@pytest.fixture(scope="package")
def target(browser: Browser, tls: dict[str, str] | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with Target(tmp_path_factory.mktemp("broker"), tls) as started:
        yield started


@pytest.fixture(scope="package")
def elsewhere(tls: dict[str, str] | None) -> Iterator[Callable[[], Elsewhere]]:
    """Starts servers of somebody else."""
    servers: list[Elsewhere] = []

    def start() -> Elsewhere:
        servers.append(Elsewhere(tls))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def profile(browser: Browser) -> Iterator[BrowserContext]:
    """A browser in which nobody has signed in yet."""
    context = browser.new_context(ignore_https_errors=True)
    context.set_default_timeout(PATIENCE_SECONDS * 1000)
    yield context
    context.close()


def own_page(profile: BrowserContext, target: Target) -> Page:
    """The broker's own page, on which nobody has signed in yet."""
    page = profile.new_page()
    page.goto(f"{target.origin}/ui/")
    return page


FETCH = """async ([method, path, body, headers]) => {
    const options = {method, headers: {...headers}};
    if (body !== null) { options.body = JSON.stringify(body); options.headers["Content-Type"] = "application/json"; }
    const response = await fetch("/api/v1" + path, options);
    const text = await response.text();
    return [response.status, text ? JSON.parse(text) : null];
}"""


def call(
    page: Page, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """`fetch` by a page of the broker's own origin: the status and the JSON."""
    status, answer = page.evaluate(FETCH, [method, path, body, headers or {}])
    return status, answer


def sign_in(page: Page, user: str = "ann") -> dict[str, str]:
    """Sign in with a password; the header that the tab must send from now on, if any."""
    status, session = call(page, "POST", "/sessions", {"user": user, "password": PASSWORD})
    assert status == 201, session
    return {session["tab_header"]: session["tab_secret"]} if session["tab_secret"] else {}


@contextmanager
def unharmed(target: Target, profile: BrowserContext) -> Iterator[None]:
    """Whatever happens meanwhile is refused by the broker, and changes nothing in it."""
    before, answers = target.state(), []
    profile.on("response", lambda response: answers.append((response.status, response.request.method, response.url)))
    yield
    assert target.state() == before
    assert [answer for answer in answers if answer[2].startswith(target.origin) and answer[0] < 400] == []


def dumped(value: Any) -> str:
    return json.dumps(value)
