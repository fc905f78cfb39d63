"""Tables: few rows are drawn of many, and none moves under the pointer, the focus or a selection."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from tests.dashboard.conftest import Dashboard, Shop

ROWS = 10_000
ROWS_DRAWN_MAX = 60


@pytest.fixture(scope="module")
def crowd(browser, tmp_path_factory):
    """A broker with many tasks and 500 queues."""
    shop = Shop(tmp_path_factory.mktemp("crowd"), is_filled=False)
    for start in range(0, ROWS, 1000):
        tasks = [{"task_type": "count", "queue": "many", "args": [start + number]} for number in range(1000)]
        shop.do("POST", "/tasks", {"tasks": tasks})
    for number in range(500):
        shop.do("POST", "/queues", {"name": f"team-{number % 20:02d}.queue-{number:03d}"})
    yield shop
    shop.close()


@pytest.fixture
def shown(browser, crowd):
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(30_000)
    shown = Dashboard(crowd, context)
    shown.sign_in()
    yield shown
    context.close()
    assert shown.said == []


def drawn(shown) -> int:
    return int(shown.page.locator("main tbody tr:not(.spacer)").count())


def test_10_000_tasks_are_scrolled_by_pages_and_few_rows_are_drawn(shown):
    shown.open("tasks", "Tasks")
    expect(shown.page.get_by_text("100 tasks, more as you scroll")).to_be_visible()
    for _ in range(12):
        shown.page.mouse.wheel(0, 4000)
        shown.page.wait_for_timeout(60)
        assert drawn(shown) <= ROWS_DRAWN_MAX
    expect(shown.page.locator(".table-foot").first).not_to_contain_text("100 tasks")


def test_500_queues_are_folded_by_the_prefix_of_their_names_and_unfold(shown):
    shown.open("queues", "Queues")
    table = shown.page.get_by_role("table", name="Queues", exact=True)
    fold = table.get_by_role("button", name="team-07")
    expect(fold).to_contain_text("25 queues")
    expect(table.get_by_role("link", name="team-07.queue-007")).to_have_count(0)
    fold.click()
    expect(table.get_by_role("link", name="team-07.queue-007")).to_be_visible()
    expect(shown.page).to_have_url(shown.shop.origin + "/ui/queues?fold=team-07")
    shown.open("queues?sort=name", "Queues")
    expect(table.get_by_role("link", name="team-00.queue-000")).to_be_visible()
    assert drawn(shown) <= ROWS_DRAWN_MAX


def test_rows_stand_still_under_the_pointer_and_new_ones_wait_behind_a_pill(shown, crowd):
    shown.open("queues?q=still", "Queues")
    crowd.push("still.b", 1)
    rows = shown.page.get_by_role("table", name="Queues", exact=True).locator("tbody tr")
    expect(rows).to_have_count(1)
    rows.first.hover()
    crowd.push("still.a", 1)
    pill = shown.page.get_by_role("button", name="1 new")
    expect(pill).to_be_visible()
    expect(rows).to_have_count(1)
    pill.click()
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("still.a")

    rows.first.hover()
    crowd.do("DELETE", "/queues/still.b")
    expect(shown.page.locator("tr.gone")).to_contain_text("still.b")
    shown.page.mouse.move(1, 1)
    expect(rows).to_have_count(1)


def test_an_answer_older_than_a_deletion_does_not_bring_the_queue_back(shown, crowd):
    crowd.push("late.a", 1)
    crowd.push("late.b", 1)
    shown.open("queues?q=late", "Queues")
    rows = shown.page.get_by_role("table", name="Queues", exact=True).locator("tbody tr")
    expect(rows).to_have_count(2)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    shown.page.route(re.compile(r"/stats$"), hold)
    crowd.push("late.c", 1)  # a new queue: the page asks for all numbers
    while not held:
        shown.page.wait_for_timeout(20)
    answer = held[0].fetch()
    crowd.do("DELETE", "/queues/late.b")
    expect(rows.filter(has_text="late.b")).to_have_count(0)
    held[0].fulfill(response=answer)
    expect(rows.filter(has_text="late.c")).to_have_count(1)
    expect(rows.filter(has_text="late.b")).to_have_count(0)


def test_a_selection_holds_the_rows_too(shown, crowd):
    crowd.push("held.b", 1)
    shown.open("queues?q=held", "Queues")
    rows = shown.page.get_by_role("table", name="Queues", exact=True).locator("tbody tr")
    rows.first.get_by_role("checkbox").check()
    shown.page.mouse.move(1, 1)
    crowd.push("held.a", 1)
    expect(shown.page.get_by_role("button", name="1 new")).to_be_visible()
    shown.page.get_by_role("button", name="Clear").click()
    expect(rows).to_have_count(2)


def test_a_view_is_saved_under_a_name_and_opened_again(shown):
    page = shown.page
    shown.open("tasks?q=status:dead", "Tasks")
    page.get_by_text("Views", exact=True).click()
    page.get_by_label("Name of this view").fill("what failed")
    page.get_by_role("button", name="Save", exact=True).click()
    shown.open("tasks", "Tasks")
    page.get_by_text("Views · 1", exact=True).click()
    page.get_by_role("button", name="what failed", exact=True).click()
    expect(page.get_by_label("Filter tasks")).to_have_value("status:dead")


def test_the_filter_completes_fields_and_states(shown):
    page = shown.page
    shown.open("tasks", "Tasks")
    shown.type_filter("sta")
    expect(page.get_by_role("option", name="status:")).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.type("comp")
    expect(page.get_by_role("option", name="completed")).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(shown.shop.origin + "/ui/tasks?q=status%3Acompleted")
    expect(page.get_by_text("No task matches")).to_be_visible()


def test_the_filter_completes_values_and_names_of_arguments_that_the_broker_knows(shown, crowd):
    page = shown.page
    crowd.do("POST", "/tasks", {"task_type": "rare", "queue": "few", "kwargs": {"customer": "ann"}})
    shown.open("tasks", "Tasks")
    shown.type_filter("task_type:ra")
    expect(page.get_by_role("option", name="rare")).to_contain_text("1")
    page.get_by_label("Filter tasks").fill("kwargs.cu")
    page.get_by_role("option", name="kwargs.customer").click()
    page.keyboard.type("ann")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Tasks").locator("tbody tr")).to_have_count(1)


def test_a_link_opens_by_the_whole_row(shown):
    shown.open("queues?q=team-03.queue-003", "Queues")
    shown.page.get_by_role("table", name="Queues", exact=True).locator("tbody td").nth(3).click()
    expect(shown.page.get_by_role("heading", level=1)).to_have_text("team-03.queue-003")
