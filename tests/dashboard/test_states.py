"""Every state of every page: loading, empty, an error, offline, forbidden."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect

from tests.dashboard.conftest import Dashboard, Shop

# A page, its heading, the request that fills it, and what an empty broker says on it.
PAGES = [
    ("queues", "Queues", r"/api/v1/stats", "No queues yet"),
    ("tasks", "Tasks", r"/api/v1/tasks\?", "No tasks yet"),
    ("workers", "Workers", r"/api/v1/workers$", "No workers"),
    ("schedules", "Schedules", r"/api/v1/schedules$", "No schedules"),
    ("operations", "Operations", r"/api/v1/operations$", "No operations"),
    ("", "Overview", r"/api/v1/health$", "No queues yet"),
]
LOADED = [page for page in PAGES if page[0] != "queues"]  # the numbers of queues come by the socket


@pytest.fixture(scope="module")
def bare(browser, tmp_path_factory):
    """A broker in which nothing has happened yet."""
    shop = Shop(tmp_path_factory.mktemp("bare"), is_filled=False)
    yield shop
    shop.close()


def test_an_empty_page_says_what_would_be_there_with_a_command_to_copy(browser, bare):
    context = browser.new_context()
    shown = Dashboard(bare, context)
    shown.sign_in()
    for path, heading, _, text in PAGES:
        shown.open(path, heading)
        expect(shown.page.get_by_text(text, exact=True).first).to_be_visible()
        expect(shown.page.locator(".empty .command code").first).to_contain_text("penstock ")
    shown.open("dlq", "Dead letters")
    expect(shown.page.get_by_text("No dead letters", exact=True)).to_be_visible()
    assert shown.said == []
    context.close()


def test_a_slow_reply_shows_a_skeleton_until_it_is_there(opener):
    shown = opener()
    shown.sign_in()
    for path, heading, pattern, _ in LOADED:
        waiting: list[Route] = []
        shown.page.route(re.compile(pattern), holding(waiting))
        shown.open(path, heading)
        expect(shown.page.locator("main .skeleton").first).to_be_visible()
        for route in waiting:
            route.continue_()
        shown.page.unroute(re.compile(pattern))
        expect(shown.page.locator("main .skeleton")).to_have_count(0)


def holding(waiting: list[Route]) -> Callable[[Route], None]:
    """Keeps requests waiting in the list."""
    return lambda route: waiting.append(route)  # noqa: PLW0108 - Playwright looks at the number of arguments


def test_an_error_has_its_code_what_to_do_the_id_of_the_request_and_a_retry(opener):
    shown = opener()
    shown.sign_in()
    shown.ignore_network()  # the browser itself notes the status 507
    body = {"error": {"code": "disk_full", "message": "the disk is full", "hint": "free some space", "details": {}}}
    for path, heading, pattern, _ in LOADED:
        fail = lambda route: route.fulfill(  # noqa: E731
            status=507, body=json.dumps(body), headers={"x-request-id": "abc-17", "content-type": "application/json"}
        )
        shown.page.route(re.compile(pattern), fail)
        shown.open(path, heading)
        alert = shown.page.get_by_role("alert").first
        for text in ("the disk is full", "free some space", "disk_full", "request abc-17"):
            expect(alert).to_contain_text(text)
        shown.page.unroute_all(behavior="ignoreErrors")
        alert.get_by_role("button", name="Try again").click()
        expect(shown.page.get_by_role("alert")).to_have_count(0)


def test_a_viewer_is_told_which_right_is_missing_on_each_page(opener):
    shown = opener()
    shown.sign_in_as("viewer")
    for path, heading, grant in [
        ("queues/shop.orders/messages", "shop.orders", "read:shop.orders"),
        ("queues/shop.orders/keys", "shop.orders", "read:shop.orders"),
        ("messages/shop.orders/0/0", "shop.orders/0/0", "read:shop.orders"),
    ]:
        shown.open(path, heading)
        expect(shown.page.get_by_role("alert").first).to_contain_text(grant)
    shown.ignore_network()  # the browser itself notes the status 403


def test_offline_nothing_is_blanked_and_actions_are_off_until_the_broker_is_back(opener):
    shown = opener(viewport={"width": 1440, "height": 900})
    shown.ignore_network()  # the browser itself notes that it could not connect
    network = Network(shown.page)
    shown.sign_in()
    shown.open("queues/shop.orders", "shop.orders")
    pause = shown.page.get_by_role("button", name="Pause", exact=True)
    expect(pause).to_be_enabled()
    expect(shown.page.get_by_role("table", name="Groups")).to_contain_text("billing")

    network.cut()
    expect(shown.page.get_by_role("alert").first).to_contain_text("actions are off", timeout=30_000)
    expect(pause).to_be_disabled()
    expect(shown.page.get_by_role("table", name="Groups")).to_contain_text("billing")

    network.mend()
    expect(pause).to_be_enabled(timeout=30_000)


class Network:
    """What is between a page and its broker."""

    def __init__(self, page: Page) -> None:
        self._page, self._is_cut = page, False
        self._sockets: list[WebSocketRoute] = []
        page.route_web_socket(re.compile("/stream"), self._connect)

    def _connect(self, socket: WebSocketRoute) -> None:
        if self._is_cut:
            socket.close()
            return
        socket.connect_to_server()
        self._sockets.append(socket)

    def cut(self) -> None:
        self._is_cut = True
        self._page.route("**/api/v1/**", lambda route: route.abort())
        for socket in self._sockets:
            socket.close()

    def mend(self) -> None:
        self._is_cut = False
        self._page.unroute("**/api/v1/**")


def test_the_page_says_what_is_wrong_with_what_was_typed(dashboard, tmp_path: Path):
    page = dashboard.page
    dashboard.open("queues/shop.orders/options", "shop.orders")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("{")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("This cannot be sent")
