"""Traces: journeys in plain Python, and the same through Spark."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.errors import InvalidField
from penstock.spark.pipelines import traces
from penstock.spark.pipelines.traces import Hop, TracesOptions, journey
from tests.spark.handmade_tables import EVENTS, MESSAGES, START, MadeRun, event, frame, message

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def parent(span: int, trace: str = TRACE) -> str:
    """A traceparent."""
    return f"00-{trace}-{span:016x}-01"


def hop(id: str, pushed: int, leased: int | None, settled: int | None, **known) -> Hop:
    values = {"span": None, "origin": None, "is_open": settled is None, **known}
    return Hop(id=id, pushed_us=pushed, leased_us=leased, settled_us=settled, **values)


def test_a_hop_comes_from_what_was_being_worked_on_when_it_was_pushed():
    steps = journey([hop("a", 0, 1, 10), hop("b", 5, 6, 20), hop("c", 7, 8, 9), hop("d", 15, 16, 40)])

    # c was pushed while both a and b were at work: the one leased last counts.
    assert [step.parent for step in steps] == [None, 0, 1, 1]
    assert [step.is_critical for step in steps] == [True, True, False, True]
    # The path has no holes: it waits, works until it hands on, and so to the end.
    assert sum(step.wait_us + step.work_us + step.gap_us for step in steps if step.is_critical) == 40


def test_messages_of_one_span_come_from_the_same_hop():
    pushed_by_a = [hop("b", 3, 4, 9, span="2"), hop("c", 5, 6, 7, span="2")]

    steps = journey([hop("a", 0, 1, 10, span="1"), *pushed_by_a])

    assert [step.parent for step in steps] == [None, 0, 0]


def test_a_trace_that_is_passed_on_unchanged_is_followed_by_time():
    steps = journey([hop("a", 0, 1, 2, span="1"), hop("b", 2, 3, 4, span="1"), hop("c", 6, 7, 8, span="1")])

    assert [step.parent for step in steps] == [None, 0, 1]
    assert steps[2].gap_us == 2


def test_a_dead_letter_comes_from_its_origin():
    steps = journey([hop("a", 0, 1, 10), hop("b", 2, 3, 9), hop("dlq", 10, None, None, origin="a")])

    assert steps[2].parent == 0
    assert [step.is_critical for step in steps] == [True, False, True]


def test_two_groups_of_one_message_have_the_same_parent():
    steps = journey([hop("a", 0, 1, 5), hop("b", 4, 5, 6), hop("b", 4, 8, 12)])

    assert [step.parent for step in steps] == [None, 0, 0]
    assert [step.is_critical for step in steps] == [True, False, True]


@pytest.fixture(scope="module")
def journey_rows():
    """One trace over three queues with a retry and a dead letter, and one that is stuck."""
    messages = [
        message("orders", 7, 0.0, trace=parent(1)),
        message("payments", 3, 2.0, trace=parent(2)),
        message("payments.dlq", 0, 9.0, trace=parent(2), headers={"penstock-origin": "payments/0/3"}),
        message("mails", 0, 2.5, trace=parent(2)),
        message("orders", 8, 1.0, trace="by hand"),
        message("orders", 9, 1.0),
    ]
    events = [
        event("orders", 5, 7, "acked", 0.0, 1.0, 3.0),
        event("payments", 3, 3, "retried", 2.0, 4.0, 5.0, error="no"),
        event("payments", 3, 3, "dead", 2.0, 8.0, 9.0, attempt=2, error="no again"),
        event("payments.dlq", 0, 0, "acked", 9.0, 10.0, 12.0),
        event("mails", 0, 0, "acked", 2.5, 2.5, 2.6),
        event("orders", 8, 8, "timed_out", 1.0, 2.0, 32.0),
    ]
    return messages, events


def test_hops_are_put_together_from_messages_and_runs_of_events(spark, journey_rows):
    messages, events = journey_rows

    tables = frame(spark, messages, MESSAGES), frame(spark, events, EVENTS)
    rows = {row["id"]: row for row in traces.journeys(traces.hops(*tables)).toArrow().to_pylist()}

    assert set(rows) == {"orders/0/7", "payments/0/3", "payments.dlq/0/0", "mails/0/0", "orders/0/8"}
    assert {row["trace"] for row in rows.values()} == {TRACE, "by hand"}
    paid = rows["payments/0/3"]
    reported = [paid[name] for name in ("parent", "outcome", "error", "deliveries", "wait_ms", "processing_ms")]
    assert reported == ["orders/0/7", "dead", "no again", 2, 2000.0, 2000.0]
    assert paid["between_ms"] == 3000.0
    assert [rows[id]["parent"] for id in ("payments.dlq/0/0", "mails/0/0")] == ["payments/0/3", "orders/0/7"]
    assert {id for id, row in rows.items() if row["is_critical"]} == set(rows) - {"mails/0/0"}


def test_a_trace_that_ends_in_a_dead_letter_has_failed(spark, journey_rows):
    messages, events = journey_rows
    unread = [each for each in events if each["queue"] != "payments.dlq"]

    tables = frame(spark, messages, MESSAGES), frame(spark, unread, EVENTS)
    rows = {row["trace"]: row for row in traces.traces(traces.journeys(traces.hops(*tables))).toArrow().to_pylist()}

    assert [(rows[name]["status"], rows[name]["open"]) for name in (TRACE, "by hand")] == [("failed", 0), ("open", 1)]
    assert rows[TRACE]["open_since"] is None


def test_a_dead_letter_that_was_replayed_is_open_and_comes_from_itself(spark, journey_rows):
    messages, events = journey_rows
    headers = {"penstock-origin": "payments/0/3", "penstock-replayed-from": "payments.dlq/0/0"}
    again = [*messages, message("again", 0, 20.0, trace=parent(2), headers=headers)]

    journeys = traces.journeys(traces.hops(frame(spark, again, MESSAGES), frame(spark, events, EVENTS))).cache()
    parents = {row["id"]: row["parent"] for row in journeys.toArrow().to_pylist()}
    rows = {row["trace"]: row for row in traces.traces(journeys).toArrow().to_pylist()}

    assert (parents["again/0/0"], parents["payments.dlq/0/0"]) == ("payments.dlq/0/0", "payments/0/3")
    assert (rows[TRACE]["status"], rows[TRACE]["open"]) == ("open", 1)


def test_a_run_tells_of_the_slowest_and_of_the_stuck_and_is_not_repeated(spark, tmp_path, journey_rows):
    messages, events = journey_rows
    run = MadeRun(spark, tmp_path, TracesOptions(), messages, events, until=START + timedelta(minutes=10))

    report = traces.run(run)
    again = traces.run(run)

    assert report.figures == {"traces": 2, "done": 0, "failed": 1, "open": 1, "stuck": 1}
    slowest, queues, stuck = report.tables
    assert [row[0] for row in slowest.rows] == ["by hand", TRACE]
    assert slowest.rows[1][2:] == [12000.0, "failed", 4, 4000.0, 8000.0, "orders → payments → payments.dlq"]
    assert {row[0] for row in queues.rows} == {"orders", "payments", "payments.dlq", "mails"}
    assert [(row[0], row[2]) for row in stuck.rows] == [("by hand", 568.0)]
    assert again.summary.startswith("Nothing new")
    page = (tmp_path / "timeline.html").read_text()
    assert page.count("<svg") == 2
    assert "http" not in page


def test_a_single_trace_is_found_by_its_traceparent_and_a_wrong_one_is_refused(spark, tmp_path, journey_rows):
    run = MadeRun(spark, tmp_path, TracesOptions(trace=parent(99)), *journey_rows)

    report = traces.run(run)

    assert report.figures["traces"] == 1
    run.options = TracesOptions(trace="it's not there")
    with pytest.raises(InvalidField, match="--trace"):
        traces.run(run)
