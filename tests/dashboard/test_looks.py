"""What no list shows: why it waits, keys, traces, workflows, schedules, the past, pipelines, who is connected."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from playwright.sync_api import expect

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def limited(shop):
    """A queue in which one key waits for who holds it."""
    shop.do("POST", "/queues", {"name": "look.keys", "key_max_in_flight": 1})
    shop.push("look.keys", *range(4), key="acme")
    shop.do("POST", "/queues/look.keys/lease", {"max": 1, "consumer": "warehouse-7"})
    yield "look.keys"
    shop.do("DELETE", "/queues/look.keys")


def test_a_queue_says_why_its_messages_wait_and_who_holds_them(dashboard, limited):
    dashboard.open(f"queues/{limited}", limited)
    why = dashboard.page.locator(".card", has=dashboard.page.get_by_role("heading", name="Why it waits"))
    expect(why).to_contain_text("acme")
    expect(why).to_contain_text("warehouse-7")
    expect(dashboard.page.get_by_text("accounted for")).to_be_visible()

    dashboard.open(f"queues/{limited}/keys", limited)
    row = dashboard.row("Keys", "acme")
    expect(row).to_contain_text("1 of 1")
    expect(row).to_contain_text("warehouse-7")


def test_messages_of_a_queue_are_searched_by_text_key_and_state(dashboard, shop):
    shop.push("look.search", {"to": "ann"}, {"to": "bob"}, key="acme")
    shop.push("look.search", {"to": "ann"}, key="other")
    page = dashboard.page
    dashboard.open("queues/look.search/messages", "look.search")
    dashboard.type_filter("key:acme ann")
    page.keyboard.press("Enter")
    rows = page.get_by_role("table", name="Messages").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text('"to": "ann"')
    expect(page.locator(".table-foot")).to_contain_text("1 message of 3 that were looked at")

    dashboard.open("queues/look.search/messages?q=status:dead key:acme", "look.search")
    expect(page.get_by_text("No message matches")).to_be_visible()
    expect(page.locator(".empty .command")).to_contain_text("penstock search look.search --state 'dead' --key 'acme'")


def test_a_group_is_moved_after_the_broker_said_what_that_does(dashboard, shop):
    shop.push("look.seek", *range(3))
    page = dashboard.page
    dashboard.open("queues/look.seek/groups", "look.seek")
    page.get_by_role("button", name="Move", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("status")).to_have_text("3 open messages will not be delivered.")
    expect(dialog).to_contain_text("penstock seek look.seek default latest")
    position = dialog.get_by_role("textbox", name="To")
    position.fill("nonsense")
    expect(dialog.get_by_role("alert")).to_contain_text("nonsense")
    position.fill("2")
    expect(dialog.get_by_role("status")).to_have_text("2 open messages will not be delivered.")
    dialog.get_by_role("button", name="Move", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Moved")
    assert shop.do("GET", "/queues/look.seek/stats")["groups"]["default"]["ready"] == 1
    dashboard.ignore_network()  # the browser itself notes the status 400


def test_a_task_says_why_it_waits(dashboard, shop):
    body = {"task_type": "lonely", "queue": "look.tasks", "args": []}
    task = shop.do("POST", "/tasks", body)["tasks"][0]["task_id"]
    dashboard.open(f"tasks/{task}", "lonely")
    why = dashboard.page.locator(".card", has=dashboard.page.get_by_role("heading", name="Why it waits"))
    expect(why.locator(".badge")).to_have_text(re.compile("no_worker|no_consumer|in_line"))


def test_a_run_that_succeeded_is_shown_as_such(dashboard, shop):
    body = {"task_type": "quick", "queue": "look.done", "args": []}
    task = shop.do("POST", "/tasks", body)["tasks"][0]["task_id"]
    leased = shop.do("POST", "/queues/look.done/lease", {"consumer": "w"})["messages"]
    shop.do("POST", "/ack", {"receipts": [message["receipt"] for message in leased]})
    dashboard.open(f"tasks/{task}", "quick")
    runs = dashboard.page.locator(".card", has=dashboard.page.get_by_role("heading", name="Runs"))
    expect(runs.locator(".badge.ok")).to_have_text("completed")


def test_a_queue_without_dead_letters_says_so_once_and_offers_nothing(dashboard, shop):
    shop.do("POST", "/queues", {"name": "look.healthy"})
    dashboard.open("queues/look.healthy/dlq", "look.healthy")
    expect(dashboard.page.locator("main").get_by_text("No dead letters", exact=True)).to_have_count(1)
    expect(dashboard.page.get_by_role("button", name="Redrive all that match")).to_have_count(0)


def test_a_workflow_shows_its_graph_its_critical_path_and_what_halving_a_step_saves(dashboard, shop):
    first = shop.do("POST", "/tasks", {"task_type": "extract", "queue": "look.flow", "workflow": "wf-look"})
    parent = first["tasks"][0]["task_id"]
    child = {"task_type": "load", "queue": "look.flow", "workflow": "wf-look", "depends_on": [parent]}
    shop.do("POST", "/tasks", child)
    dashboard.open("workflows", "Workflows")
    row = dashboard.row("Workflows", "wf-look")
    expect(row).to_contain_text("0 of 2")
    row.get_by_role("link").first.click()
    page = dashboard.page
    expect(page.locator(".graph svg")).to_contain_text("extract")
    expect(page.get_by_role("table", name="Critical path")).to_contain_text("Halving it saves")

    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel 2 tasks")
    dialog.get_by_role("button", name="Cancel", exact=True).last.click()
    expect(dialog).to_contain_text("of 2 done")


def test_a_trace_is_shown_on_one_axis_over_all_queues(dashboard, shop):
    shop.push("look.traced", {"step": 1}, trace=TRACE)
    shop.push("look.traced-too", {"step": 2}, trace=TRACE)
    dashboard.open("traces", "Traces")
    dashboard.page.get_by_label("Trace id").fill(TRACE)
    dashboard.page.get_by_role("button", name="Open").click()
    expect(dashboard.row("Steps", "look.traced-too/0/0")).to_have_count(1)
    expect(dashboard.page.get_by_role("table", name="Steps").locator(".lane")).to_have_count(2)


def test_a_schedule_has_its_next_ticks_in_both_zones_and_runs_now(opener, shop):
    shop.do("PUT", "/schedules/look", {"cron": "0 3 * * *", "timezone": "Asia/Tokyo", "task_type": "x", "queue": "x"})
    shown = opener(timezone_id="Europe/Berlin")
    shown.sign_in()
    shown.open("schedules/look", "look")
    ticks = shown.page.get_by_role("table", name="Next ticks")
    expect(ticks.locator("tbody tr")).to_have_count(5)
    expect(ticks).to_contain_text("03:00")
    expect(ticks).to_contain_text("Europe/Berlin, here")
    expect(shown.page.get_by_text("every day at 03:00")).to_be_visible()
    shown.page.get_by_role("button", name="Run now").click()
    shown.page.get_by_role("dialog").get_by_role("button", name="Run now").click()
    expect(shown.row("Runs", "hand")).to_have_count(1)
    shop.do("DELETE", "/schedules/look")


def test_a_worker_is_quieted_and_resumed(dashboard, shop):
    beat = {"queues": ["look.work"], "task_types": ["x"], "concurrency": 4, "host": "h", "pid": 7, "version": "1"}
    shop.do("POST", "/workers/look-1/heartbeat", beat)
    dashboard.open("workers/look-1", "look-1")
    page = dashboard.page
    page.get_by_role("button", name="Quiet", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("penstock workers quiet look-1")
    page.get_by_role("dialog").get_by_role("button", name="Quiet", exact=True).click()
    expect(page.get_by_text("It takes nothing new")).to_be_visible()
    shop.do("POST", "/workers/look-1/heartbeat", beat)  # on a slow machine it would be taken for dead by now
    page.get_by_role("button", name="Resume", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_text("It takes nothing new")).to_have_count(0)


def test_the_past_is_a_link_and_nothing_can_be_changed_in_it(dashboard, shop):
    shop.push("look.past", 1, 2, 3)
    before = shop.do("GET", "/queues/look.past/messages")["messages"][-1]["pushed_at"]
    shop.do("POST", "/queues/look.past/purge")
    moment = datetime.fromisoformat(before).astimezone(UTC).isoformat().replace("+00:00", "Z")
    dashboard.open(f"queues/look.past?at={moment}", "look.past")
    expect(dashboard.page.get_by_role("table", name="Groups at that moment")).to_contain_text("3")
    expect(dashboard.page.get_by_role("button", name="Push", exact=True)).to_be_disabled()
    dashboard.page.get_by_role("button", name="Back to now").click()
    expect(dashboard.page.get_by_role("button", name="Push", exact=True)).to_be_enabled()

    dashboard.open("queues?at=2001-01-01T00:00:00Z", "Queues")
    expect(dashboard.page.get_by_text("No queue was there")).to_be_visible()


def test_a_span_of_a_chart_is_replayed_to_another_queue(dashboard, shop):
    shop.push("look.replay", {"n": 1}, {"n": 2})
    shop.do("POST", "/queues", {"name": "look.copies"})
    page = dashboard.page
    dashboard.open("queues/look.replay/history?span=5m", "look.replay")
    plot = page.locator(".u-over").first
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 60, steps=5)
    page.mouse.up()
    page.get_by_role("button", name="Replay these messages").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To the queue").fill("look.copies")
    dialog.get_by_label("To the queue").press("Tab")
    expect(dialog).to_contain_text("Replay 2 messages")
    expect(dialog).to_contain_text("--target look.copies")
    dialog.get_by_role("button", name="Replay", exact=True).click()
    expect(dialog).to_contain_text("2 of 2 done")
    assert shop.do("GET", "/queues/look.copies/stats")["messages"] == 2


def test_a_forecast_is_drawn_behind_the_past_where_there_is_enough_of_it(dashboard, shop):
    shop.push("look.ahead", 1, 2, 3)
    page = dashboard.page
    dashboard.open("queues/look.ahead/history?span=5m", "look.ahead")
    page.get_by_label("Show the forecast").check()
    expect(page.get_by_text("too little history for a forecast")).to_be_visible()
    assert "forecast=on" in page.url

    def expected(route):
        reply = route.fetch()
        history = reply.json()
        ahead = history["forecast"]
        for band in ahead["series"].values():
            steps = len(ahead["times"])
            band |= {"value": [7000.0] * steps, "low": [6000.0] * steps, "high": [8000.0] * steps}
        route.fulfill(response=reply, json=history)

    page.route(re.compile("/history/series"), expected)
    dashboard.open("queues/look.ahead/history?span=5m&forecast=on", "look.ahead")
    chart = page.get_by_role("figure", name="Backlog")
    expect(chart.locator(".legend")).to_contain_text("Not settled, expected")
    expect(chart.locator(".legend")).to_contain_text("Not settled 3")  # the newest that is known
    chart.get_by_text("As a table").click()
    expect(chart.get_by_role("row").last).to_contain_text("7")
    expect(chart.get_by_role("row").last).to_contain_text("8")


def test_a_report_is_shown_in_a_frame_that_can_run_nothing(dashboard):
    dashboard.open("pipelines", "Pipelines")
    dashboard.row("Runs of rollup", "run-1").get_by_role("link", name="run-1").click()
    frame = dashboard.page.locator("iframe.report")
    expect(frame).to_have_attribute("sandbox", "")
    expect(dashboard.page.frame_locator("iframe.report").get_by_role("heading")).to_have_text("Roll-up")


def test_the_broker_lists_its_connections_and_its_nodes(dashboard):
    dashboard.open("broker/connections", "Broker")
    expect(dashboard.page.get_by_role("table", name="Connections")).to_contain_text("websocket")
    dashboard.open("broker/cluster", "Broker")
    expect(dashboard.page.get_by_role("table", name="Nodes").locator("tbody tr")).to_have_count(1)
