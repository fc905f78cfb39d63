"""Live updates: one socket, which a hidden tab gives back; polling where there is none; a page that can stand still."""

from __future__ import annotations

import re

from playwright.sync_api import WebSocket, WebSocketRoute, expect

HIDE = """() => {
  Object.defineProperty(document, "hidden", { value: %s, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_tab_has_one_socket_on_every_page(opener):
    shown = opener()
    sockets: list[str] = []
    shown.page.on("websocket", lambda socket: sockets.append(socket.url))
    shown.sign_in()
    expect(shown.page.locator(".live")).to_contain_text("Live")
    for name in ("Queues", "Tasks", "Operations", "Dead letters", "Overview"):
        shown.page.get_by_label("Pages", exact=True).get_by_role("link", name=re.compile(f"^{name}")).click()
        expect(shown.page.get_by_role("heading", level=1)).to_have_text(name)
    assert len(sockets) == 1


def test_a_hidden_tab_unsubscribes_after_a_minute_and_comes_back(opener, shop):
    shown = opener()
    sockets: list[WebSocket] = []
    shown.page.clock.install()
    shown.page.on("websocket", lambda socket: sockets.append(socket))  # noqa: PLW0108 - no method of a list is taken
    shown.sign_in()
    shown.open("queues", "Queues")
    expect(shown.page.locator(".live")).to_contain_text("Live")

    shown.page.evaluate(HIDE % "true")
    shown.page.clock.run_for(59_000)
    assert not sockets[-1].is_closed()
    with sockets[-1].expect_event("close"):
        shown.page.clock.run_for(2_000)

    shop.push("while.away", 1)
    shown.page.evaluate(HIDE % "false")
    expect(shown.row("Queues", "while.away")).to_have_count(1)


def test_a_page_that_is_paused_stands_still_and_says_how_old_its_data_is(dashboard, shop):
    shop.push("before.the.pause", 1)
    dashboard.open("queues", "Queues")
    expect(dashboard.row("Queues", "before.the.pause")).to_have_count(1)
    dashboard.page.keyboard.press(".")
    expect(dashboard.page.locator(".live")).to_contain_text("Paused")
    shop.push("while.paused", 1)
    expect(dashboard.page.locator(".live")).to_contain_text("data", timeout=15_000)
    expect(dashboard.row("Queues", "while.paused")).to_have_count(0)
    dashboard.page.keyboard.press(".")
    expect(dashboard.row("Queues", "while.paused")).to_have_count(1)


def test_a_page_that_is_paused_before_its_first_data_still_gets_it(dashboard, shop):
    shop.push("before.the.page", 1)
    held: list[tuple[WebSocketRoute, str | bytes]] = []
    is_released = False

    def connect(browser: WebSocketRoute) -> None:
        browser.connect_to_server().on_message(
            lambda text: browser.send(text) if is_released else held.append((browser, text))
        )

    dashboard.page.route_web_socket(re.compile("/stream"), connect)
    dashboard.open("queues", "Queues")
    expect(dashboard.page.locator(".live")).to_contain_text("Live")
    dashboard.page.keyboard.press(".")
    expect(dashboard.page.locator(".live")).to_contain_text("Paused")
    is_released = True
    for browser, text in held:
        browser.send(text)
    expect(dashboard.row("Queues", "before.the.page")).to_have_count(1)


def test_where_no_socket_can_be_had_the_page_asks_every_few_seconds(opener, shop):
    shown = opener()
    shown.page.route_web_socket(re.compile("/stream"), lambda socket: socket.close())
    shown.sign_in()
    expect(shown.page.locator(".live")).to_contain_text("Every 5 s", timeout=30_000)
    shown.open("queues", "Queues")
    shop.push("by.polling", 1)
    expect(shown.row("Queues", "by.polling")).to_have_count(1, timeout=30_000)
    shown.ignore_network()  # the browser itself notes sockets that were closed
