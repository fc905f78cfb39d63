"""Work on everything that matches: counted by the broker, confirmed, and run as an operation that can be stopped."""

from __future__ import annotations

import re

from playwright.sync_api import expect


def dead_letters(shop, queue: str, count: int, error: str) -> None:
    for start in range(0, count, 500):
        shop.push(queue, *({"number": number} for number in range(start, min(count, start + 500))))
    while shop.do("GET", f"/queues/{queue}/stats")["groups"]["default"]["ready"]:
        shop.fail(queue, error)


def ready(shop, queue: str) -> int:
    return int(shop.do("GET", f"/queues/{queue}/stats")["groups"]["default"]["ready"])


def test_ticked_letters_are_counted_and_redriven_as_an_operation(dashboard, shop):
    dead_letters(shop, "bulk.few", 3, "gone")
    page = dashboard.page
    dashboard.open("dlq?queue=bulk.few", "Dead letters")
    rows = page.get_by_role("table", name="Dead letters").locator("tbody tr")
    rows.nth(0).get_by_role("checkbox").check()
    rows.nth(1).get_by_role("checkbox").check()
    page.get_by_role("status").get_by_role("button", name="Redrive", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Redrive 2 dead letters")
    expect(dialog).to_contain_text("ready again in the group where it failed")
    expect(dialog).to_contain_text("penstock dlq redrive bulk.few --id bulk.few.dlq/0/0 --id bulk.few.dlq/0/1")
    dialog.get_by_role("button", name="Redrive", exact=True).click()

    expect(dialog).to_contain_text("2 of 2 done")
    dialog.get_by_role("button", name="Close").click()
    expect(rows).to_have_count(1)
    assert ready(shop, "bulk.few") == 2


def test_above_a_thousand_the_count_is_typed_and_a_canary_goes_first(dashboard, shop):
    dead_letters(shop, "bulk.many", 1200, "timeout of the bank")
    page = dashboard.page
    dashboard.open("dlq?queue=bulk.many", "Dead letters")
    page.get_by_role("button", name="Redrive all that match").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Redrive 1,200 dead letters")
    begin = dialog.get_by_role("button", name="Redrive", exact=True)
    expect(begin).to_be_disabled()
    dialog.get_by_role("textbox", name="to confirm").fill("1200")
    dialog.get_by_role("checkbox", name="Try 5 first").check()
    expect(dialog).to_contain_text("penstock dlq redrive bulk.many --canary 5")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.method == "GET" else None)
    begin.click()

    expect(dialog).to_contain_text("5 dead letters done, 0 failed")
    assert ready(shop, "bulk.many") == 5
    expect(dialog).to_contain_text(re.compile("the operation stops by itself in 2[34] h"))
    dialog.get_by_role("button", name="Continue with the rest").click()
    expect(dialog).to_contain_text("1,200 of 1,200 done", timeout=30_000)
    assert not [url for url in asked if "/operations/" in url], "events show the progress; nothing is polled"
    assert ready(shop, "bulk.many") == 1200


def test_a_slow_operation_goes_on_without_its_window_and_is_stopped_on_its_page(dashboard, shop):
    dead_letters(shop, "bulk.slow", 50, "gone")
    page = dashboard.page
    dashboard.open("dlq?queue=bulk.slow", "Dead letters")
    page.get_by_role("button", name="Redrive all that match").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Redrive 50 dead letters")
    dialog.get_by_label("At most per second").fill("1")
    dialog.get_by_role("button", name="Redrive", exact=True).click()
    expect(dialog).to_contain_text("at most 1.0 per second")
    dialog.get_by_role("button", name="Hide").click()

    dashboard.open("operations", "Operations")
    row = dashboard.row("Operations", "bulk.slow")
    expect(row).to_contain_text("running")
    row.get_by_role("button", name="Stop").click()
    expect(dialog).to_contain_text("What was done stays done")
    dialog.get_by_role("button", name="Stop", exact=True).click()
    expect(row).to_contain_text("stopped")
    assert 0 < ready(shop, "bulk.slow") < 50


def test_a_canary_that_waits_says_when_it_stops_and_one_that_lost_its_queue_says_why(dashboard, shop):
    dead_letters(shop, "bulk.waits", 3, "gone")
    shop.do("POST", "/queues/bulk.waits/dlq/redrive", {"canary": 1})
    dashboard.open("operations", "Operations")
    row = dashboard.row("Operations", "bulk.waits")
    expect(row).to_contain_text("waiting")
    expect(row).to_contain_text(re.compile("stops in 2[34] h"))
    expect(row.get_by_role("button", name="Continue")).to_be_visible()

    shop.do("DELETE", "/queues/bulk.waits")
    expect(row).to_contain_text("queue 'bulk.waits' was deleted")
    expect(row.get_by_role("button")).to_have_count(0)


def test_letters_that_match_are_discarded(dashboard, shop):
    dead_letters(shop, "bulk.discard", 2, "first cause")
    dead_letters(shop, "bulk.discard", 3, "second cause")
    page = dashboard.page
    dashboard.open("dlq?queue=bulk.discard&q=second", "Dead letters")
    page.get_by_role("button", name="Discard all that match").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Discard 3 dead letters")
    dialog.get_by_role("button", name="Discard", exact=True).click()
    expect(dialog).to_contain_text("3 of 3 done")
    assert len(shop.do("GET", "/queues/bulk.discard/dlq")["messages"]) == 2


def test_all_tasks_that_match_are_cancelled_and_retried(dashboard, shop):
    tasks = [{"task_type": "wait", "queue": "bulk.tasks", "args": [number]} for number in range(8)]
    shop.do("POST", "/tasks", {"tasks": tasks})
    page = dashboard.page
    dashboard.open("tasks?q=queue:bulk.tasks", "Tasks")
    expect(page.get_by_text("8 tasks", exact=True)).to_be_visible()
    page.keyboard.press("a")
    page.get_by_role("status").get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel 8 tasks")
    expect(dialog).to_contain_text("penstock operations begin cancel --queue 'bulk.tasks'")
    dialog.get_by_role("button", name="Cancel", exact=True).last.click()
    expect(dialog).to_contain_text("8 of 8 done")
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_role("table", name="Tasks").locator(".badge", has_text="cancelled")).to_have_count(8)

    page.get_by_role("checkbox", name="Select all rows that are shown").check()
    page.get_by_role("status").get_by_role("button", name="Retry").click()
    expect(dialog).to_contain_text("Retry 8 tasks")
    dialog.get_by_role("button", name="Retry", exact=True).click()
    expect(dialog).to_contain_text("8 of 8 done")


def test_what_came_after_the_count_is_not_touched(dashboard, shop):
    dead_letters(shop, "bulk.frozen", 3, "gone")
    page = dashboard.page
    dashboard.open("dlq?queue=bulk.frozen", "Dead letters")
    page.get_by_role("button", name="Redrive all that match").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Redrive 3 dead letters")
    dead_letters(shop, "bulk.frozen", 2, "gone")
    dialog.get_by_role("button", name="Redrive", exact=True).click()
    expect(dialog).to_contain_text("3 of 3 done")
    assert ready(shop, "bulk.frozen") == 3


def test_a_count_that_is_refused_says_why(opener, shop):
    dead_letters(shop, "bulk.refused", 1, "gone")
    shown = opener()
    shown.ignore_network()  # the browser itself notes the status 403
    shown.sign_in()
    shown.page.route(
        re.compile("/dlq/redrive"),
        lambda route: route.fulfill(
            status=403, body='{"error": {"code": "not_authorised", "message": "may not manage"}}'
        ),
    )
    shown.open("dlq?queue=bulk.refused", "Dead letters")
    shown.page.get_by_role("button", name="Redrive all that match").click()
    dialog = shown.page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("may not manage")
    expect(dialog.get_by_role("button", name="Redrive", exact=True)).to_be_disabled()
