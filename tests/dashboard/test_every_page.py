"""What holds for every page: each check runs on every row of the table of pages.

The console stays empty throughout. The browser writes violations of the page's own policy there, so there are none.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Error, Locator, Page, Route, ViewportSize, expect
from typer.main import get_command

from penstock.cli.app import app
from tests.dashboard.conftest import PREFIX, Dashboard, Proxy, Shop
from tests.dashboard.page_table import PAGES, Many, PageRow, routes
from tests.support.dashboard import ROOT

AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"
WIDE: ViewportSize = {"width": 1440, "height": 900}
NARROW: ViewportSize = {"width": 360, "height": 780}
ROWS = 10_000
ROWS_DRAWN_MAX = 60
TABS_MAX = 40
ERROR = {"error": {"code": "disk_full", "message": "the disk is full", "hint": "free some space", "details": {}}}
FOCUSED = """() => {
  const element = document.activeElement, box = element.getBoundingClientRect();
  // A field for a date has several parts, each of which takes a Tab.
  const isMoved = window.previouslyFocused !== element || element.type === "datetime-local";
  window.previouslyFocused = element;
  const isSeen = box.width > 0 && box.bottom > 0 && box.top < innerHeight;
  // In a frame, the document of the frame shows the focus.
  const outline = element.tagName === "IFRAME" ? "auto" : getComputedStyle(element).outlineStyle;
  const text = element.outerHTML.slice(0, 120);
  return { isMoved, inMain: Boolean(element.closest("main")), isSeen, text, outline };
}"""


# Tables and figures that are wider than the box that hides the rest of them.
CUT_OFF = """() => {
  const isCut = (element) => {
    let box = element;
    do box = box.parentElement; while (box && getComputedStyle(box).overflowX === "visible");
    const hides = box && ["hidden", "clip"].includes(getComputedStyle(box).overflowX);
    const width = Math.max(element.scrollWidth, element.getBoundingClientRect().width);
    return hides && element.getBoundingClientRect().left + width > box.getBoundingClientRect().right + 1;
  };
  const elements = [...document.querySelectorAll("main table, main .stat *, main dt")];
  return elements.filter(isCut).map((element) => element.outerHTML.slice(0, 150));
}"""


@pytest.fixture(scope="module")
def shop(browser, tmp_path_factory) -> Iterator[Shop]:
    """A shop that no other test changes."""
    shop = Shop(tmp_path_factory.mktemp("pages"))
    yield shop
    shop.close()


@pytest.fixture(scope="module")
def bare(browser, tmp_path_factory) -> Iterator[Shop]:
    """A broker in which nothing has happened yet."""
    shop = Shop(tmp_path_factory.mktemp("bare"), is_filled=False)
    yield shop
    shop.close()


def address(row: PageRow, shop: Shop) -> str:
    if row.route.startswith("workers"):
        shop.beat()  # or it would be taken for dead
    return row.path.replace("{task}", shop.task)


def request_of(pattern: str, shop: Shop) -> re.Pattern[str]:
    return re.compile("/api/v1" + pattern.replace("{task}", shop.task))


def show(shown: Dashboard, row: PageRow) -> None:
    """Open a page and wait for its content."""
    shown.open(address(row, shown.shop), row.heading)
    expect(shown.page.locator("main")).to_contain_text(row.shows)
    settled(shown.page)


def on_every_page(check: Callable[[PageRow], None]) -> None:
    """Run a check on every page; all that fail are named."""
    problems = []
    for row in PAGES:
        try:
            check(row)
        except (AssertionError, Error) as error:
            problems.append(f"{row.path}: {str(error)[:400]}")
    assert not problems, "\n".join(problems)


def settled(page: Page) -> None:
    expect(page.locator("[aria-busy]")).to_have_count(0)


def test_every_page_of_the_router_is_in_the_table():
    assert sorted(routes()) == sorted({row.route for row in PAGES})


def test_every_command_that_a_page_shows_exists():
    root: Any = get_command(app)
    shown, unknown = 0, []
    for source in (ROOT / "web" / "src").rglob("*.tsx"):
        for first, second, rest in re.findall(r"[\"'`]penstock ([a-z-]+)(?: ([a-z-]+))?([^\n]*)", source.read_text()):
            shown += 1
            command = root.commands.get(first)
            if second and hasattr(command, "commands"):
                command = command.commands.get(second)
            options = {name for parameter in getattr(command, "params", ()) for name in parameter.opts}
            flags = re.findall(r" (--[a-z][a-z-]+)", re.split(r"[\"`],?$|[\"`][,}>]", rest)[0])
            if command is None or not options.issuperset(flags):
                unknown.append(f"{source.name}: penstock {first} {second} {flags}")
    assert shown > 40
    assert unknown == []


def test_every_page_is_accessible_and_fits_in_both_themes_wide_and_narrow(opener, shop):
    shown = opener(viewport=WIDE, color_scheme="light")
    # As the page's own script would be: the policy stays as it is.
    shown.page.add_init_script(path=AXE)
    shown.sign_in()
    problems: list[str] = []
    for row in PAGES:
        shown.page.set_viewport_size(WIDE)
        show(shown, row)
        for name in row.actions:
            expect(shown.page.locator("main").get_by_role("button", name=name, exact=True).first).to_be_visible()
        problems += looks(shown.page, row.path)
    assert problems == []


def looks(page: Page, name: str) -> list[str]:
    """What is wrong with the page as it is shown: wide and narrow, light and dark."""
    problems = []
    for size in (WIDE, NARROW):
        page.set_viewport_size(size)
        for theme, rules in (("light", None), ("dark", ["color-contrast"])):
            page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            problems += [f"{name} {size['width']} {theme}: {text}" for text in violations(page, rules)]
        if page.evaluate("document.documentElement.scrollWidth") > size["width"]:
            problems.append(f"{name} {size['width']}: wider than the window")
        problems += [f"{name} {size['width']}: cut off: {text}" for text in page.evaluate(CUT_OFF)]
    page.evaluate("() => { document.documentElement.dataset.theme = 'light' }")
    return problems


def violations(page: Page, rules: list[str] | None) -> Iterator[str]:
    options: dict[str, Any] = {"preload": False, "iframes": False, "resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    for violation in page.evaluate("options => axe.run(options)", options)["violations"]:
        node = violation["nodes"][0]
        yield f"{violation['id']}: {node['html'][:200]} {node.get('failureSummary', '')[:200]}"


def test_every_page_shows_a_skeleton_then_an_error_with_a_retry_then_its_content(opener, shop):
    shown = opener()
    shown.sign_in()
    shown.ignore_network()  # the browser itself notes the status 507 and the sockets that were closed

    def check(row: PageRow) -> None:
        if row.request is not None:
            states(shown, row, request_of(row.request, shop))

    on_every_page(check)


def states(shown: Dashboard, row: PageRow, pattern: re.Pattern[str]) -> None:
    """Hold the request that fills a page, fail it, and let it through."""
    held: list[Route] = []
    answers = [held.append]  # the last one counts
    page = shown.context.new_page()
    page.add_init_script(f"sessionStorage.setItem('penstock-tab', {json.dumps(shown.tab_secret())})")
    if row.route == "queues":  # its numbers come by the socket; without one they are asked for
        page.route_web_socket(re.compile("/stream"), lambda socket: socket.close())
    page.route(pattern, lambda route: answers[-1](route))  # noqa: PLW0108 - the list grows
    with page.expect_request(pattern):
        page.goto(f"{shown.shop.origin}/ui/{address(row, shown.shop)}")
    expect(page.locator("main .skeleton").first).to_be_visible()

    answers.append(failing)
    for route in held:
        failing(route)
    alert = page.locator("main").get_by_role("alert").first
    for text in ("the disk is full", "free some space", "disk_full", "request abc-17"):
        expect(alert).to_contain_text(text)

    answers.append(lambda route: route.continue_())
    alert.get_by_role("button", name="Try again").click()
    expect(page.locator("main")).to_contain_text(row.shows)
    expect(page.locator("main").get_by_role("alert")).to_have_count(0)
    page.close()


def failing(route: Route) -> None:
    headers = {"x-request-id": "abc-17", "content-type": "application/json"}
    route.fulfill(status=507, body=json.dumps(ERROR), headers=headers)


def test_every_page_that_is_empty_says_what_would_be_there(opener, shop, bare):
    for broker in (bare, shop):
        shown = opener(broker)
        shown.sign_in()
        shown.ignore_network()  # the browser itself notes the status 404
        for row in PAGES:
            if row.empty is None:
                continue
            path, title = row.empty
            # Lists are empty in a broker where nothing has happened; what is named and not there, in any.
            if (broker is bare) != (path == row.route):
                continue
            shown.page.goto(f"{broker.origin}/ui/{path}")
            expect(shown.page.locator("main").get_by_text(title, exact=True).first).to_be_visible()
            settled(shown.page)
            if title != "Not found":
                expect(shown.page.locator("main .empty .command code").first).not_to_be_empty()


def test_a_viewer_of_every_page_is_offered_nothing_to_change_and_told_which_right_is_missing(opener, shop):
    shown = opener()
    shown.sign_in_as("viewer")
    shown.ignore_network()  # the browser itself notes the status 403

    def check(row: PageRow) -> None:
        shown.page.goto(f"{shop.origin}/ui/{address(row, shop)}")
        if row.viewer is None:
            expect(shown.page.locator("main")).to_contain_text(row.shows)
        else:
            expect(shown.page.locator("main").get_by_role("alert").first).to_contain_text(row.viewer)
        settled(shown.page)
        for name in row.actions:
            expect(shown.page.locator("main").get_by_role("button", name=name, exact=True)).to_have_count(0)

    on_every_page(check)


def test_of_10_000_rows_every_list_draws_few_and_scrolls_to_the_last(opener, shop):
    shown = opener(viewport=WIDE)
    shown.sign_in()

    def check(row: PageRow) -> None:
        if row.many is not None:
            scroll_through(shown, row, row.many)

    on_every_page(check)


def scroll_through(shown: Dashboard, row: PageRow, many: Many) -> None:
    pattern = request_of(many.request, shown.shop)
    shown.page.route(pattern, multiplying(many))
    shown.open(address(row, shown.shop), row.heading)
    table = shown.page.get_by_role("table", name=many.table, exact=True)
    expect(table).to_have_attribute("aria-rowcount", str(ROWS + 1))
    assert drawn(table) <= ROWS_DRAWN_MAX
    # Twice: tables above it may have been drawn in between.
    for _ in range(2):
        table.evaluate("table => scrollTo(0, table.getBoundingClientRect().bottom + scrollY - innerHeight)")
    expect(table.locator(f'tr[aria-rowindex="{ROWS + 1}"]')).to_be_visible()
    assert drawn(table) <= ROWS_DRAWN_MAX
    shown.page.goto("about:blank")
    shown.page.unroute(pattern)


def drawn(table: Locator) -> int:
    return int(table.locator("tbody tr:not(.spacer)").count())


def multiplying(many: Many) -> Callable[[Route], None]:
    """Answers with the first row of the real reply, 10,000 times."""

    def answer(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        place: Any = body
        *path, last = many.rows.split(".")
        for name in path:
            place = place[int(name) if name.isdigit() else name]
        first = place[last][0]
        place[last] = [repeated(first, many.key, number) for number in range(ROWS)]
        for name in ("total", "cursor"):
            if name in body:
                body[name] = ROWS if name == "total" else None
        route.fulfill(status=200, json=body)

    return answer


def repeated(row: Any, key: str, number: int) -> Any:
    clone = copy.copy(row)
    if key:
        old = clone[key]
        clone[key] = number if isinstance(old, int) else re.sub(r"\d+$", "", str(old)) + str(number)
    return clone


def test_every_page_is_walked_through_with_the_keyboard_alone(opener, shop):
    shown = opener(viewport=WIDE)
    shown.sign_in()
    problems: list[str] = []
    for row in PAGES:
        show(shown, row)
        shown.page.locator("#main").focus()  # where the link to skip the navigation leads
        problems += [f"{row.path}: {problem}" for problem in walk(shown.page)]
        for name in row.actions:
            button = shown.page.locator("main").get_by_role("button", name=name, exact=True).first
            if button.evaluate("button => button.tabIndex") < 0:
                problems.append(f"{row.path}: {name} is not reached by Tab")
    assert not problems, "\n".join(problems)


def walk(page: Page) -> Iterator[str]:
    """Press Tab through the page: the focus moves, is seen, and leaves at the end."""
    for turn in range(TABS_MAX):
        page.keyboard.press("Tab")
        focus = page.evaluate(FOCUSED)
        if not focus["inMain"]:
            if not turn:
                yield f"nothing in it takes the focus: {focus['text']}"
            return
        if not focus["isSeen"]:
            yield f"the focus is out of sight: {focus['text']}"
        if focus["outline"] == "none":
            yield f"the focus is not shown: {focus['text']}"
        if not focus["isMoved"]:
            yield f"the focus does not move: {focus['text']}"


def test_every_page_works_under_a_path_of_a_proxy_without_websockets(opener, prefixed):
    with Proxy(prefixed.origin) as proxy:
        shown = opener(prefixed)
        shown.ignore_network()  # the proxy knows no WebSockets

        def check(row: PageRow) -> None:
            shown.page.goto(f"{proxy.url}/ui/{address(row, prefixed)}")
            expect(shown.page.get_by_role("heading", level=1)).to_have_text(row.heading)
            expect(shown.page.locator("main")).to_contain_text(row.shows)
            links = shown.page.locator("a[href^='/']").evaluate_all("links => links.map(link => link.pathname)")
            assert links
            assert [link for link in links if not link.startswith(f"{PREFIX}/")] == []

        on_every_page(check)


def test_every_page_survives_a_broker_that_is_killed_and_comes_back(opener, open_shop):
    shown = opener(open_shop)
    shown.ignore_network()  # the browser itself notes that it could not connect
    tabs: list[tuple[PageRow, Page]] = []
    for row in PAGES:
        page = shown.context.new_page()
        shown.listen(page)
        page.goto(f"{open_shop.origin}/ui/{address(row, open_shop)}")
        tabs.append((row, page))
    for row, page in tabs:
        expect(page.locator("main")).to_contain_text(row.shows)

    open_shop.served.__exit__()
    for row, page in tabs:
        expect(page.locator(".banner")).to_contain_text("actions are off", timeout=60_000)
        expect(page.locator("main")).to_contain_text(row.shows)  # nothing is blanked
        for name in row.actions:
            expect(page.locator("main").get_by_role("button", name=name, exact=True).first).to_be_disabled()

    open_shop.start()
    open_shop.beat()
    open_shop.hold()  # what a killed broker had leased is ready again
    for row, page in tabs:
        expect(page.locator(".banner")).to_have_count(0, timeout=60_000)
        expect(page.locator("main")).to_contain_text(row.shows)
        for name in row.actions:
            expect(page.locator("main").get_by_role("button", name=name, exact=True).first).to_be_enabled()
        page.close()


def test_the_page_to_sign_in_is_accessible_works_with_the_keyboard_and_says_what_is_wrong(opener, shop):
    shown = opener(viewport=WIDE, color_scheme="light")
    page = shown.page
    page.add_init_script(path=AXE)
    page.goto(f"{shop.origin}/ui/queues")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to Penstock")
    assert looks(page, "sign-in") == []
    page.set_viewport_size(WIDE)
    page.keyboard.press("Tab")
    page.keyboard.type("viewer")
    page.keyboard.press("Tab")
    page.keyboard.type("not the password")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    assert looks(page, "sign-in, refused") == []
    shown.ignore_network()  # the browser itself notes the status 401
