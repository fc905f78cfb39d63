"""`backtest`: handlers that raise, hang, crash or cannot be found; and one run beside what really happened."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock import Message
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField
from penstock.spark.pipelines.backtest import (
    PIPELINE,
    BacktestOptions,
    check_handler,
    compared,
    verdict,
    what_happened,
)
from penstock.spark.pipelines.base import Run, parse_options
from penstock.spark.pipelines.handler_process import LOST_IN_A_ROW_MAX, Call, HandlerProcess, Result, Setup

HANDLERS = """
import asyncio, os, signal, sys, threading

def handle(delivery):
    print("noise on standard output")
    order = delivery.json()
    match order["do"]:
        case "raise":
            raise ValueError(f"cannot do {order['n']}")
        case "reject":
            delivery.reject("never")
        case "hang":
            threading.Event().wait()
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "leave":
            sys.exit(3)

async def handle_later(delivery):
    await asyncio.sleep(0)
    if delivery.key == "bad":
        raise KeyError(delivery.key)
    await delivery.snooze(5) if delivery.key == "later" else await delivery.ack()

not_a_function = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "handlers_under_test.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def process(here: Path) -> Iterator[HandlerProcess]:
    found = started(here, "handle")
    yield found
    found.stop()


def started(here: Path, name: str, timeout_seconds: float = 0.4) -> HandlerProcess:
    return HandlerProcess(Setup(handler=f"handlers_under_test:{name}", path=(str(here),)), timeout_seconds)


def call(what: str = "", key: str | None = None) -> Call:
    payload = msgspec.json.encode({"do": what, "n": 7})
    return Call("orders", "0", 4, key, payload, None, 128, 0, None, None, None, None)


def test_a_handler_ends_in_every_way_and_the_next_message_is_handled(process: HandlerProcess) -> None:
    asked = ("", "raise", "reject", "hang", "die", "leave", "")

    results = [process.call(call(what)) for what in asked]

    assert [each.outcome for each in results] == [
        "acked", "retried", "rejected", "timed_out", "interrupted", "interrupted", "acked",
    ]  # fmt: skip
    errors = [each.error or "" for each in results]
    assert errors[1].startswith("Traceback")
    assert errors[1].endswith("ValueError: cannot do 7\n")
    assert "handler_child" not in errors[1]
    assert errors[2:6] == [
        "never",
        "timed out after 0.4 s",
        "the handler's process died: SIGKILL",
        "the handler's process died: exit status 3",
    ]
    assert all(each.ms is not None and each.ms >= 0 for each in results)


def test_an_async_handler_is_awaited(here: Path) -> None:
    process = started(here, "handle_later", 10)

    outcomes = [process.call(call(key=key)).outcome for key in ("fine", "bad", "later")]
    process.stop()

    assert outcomes == ["acked", "retried", "snoozed"]


def test_a_handler_that_never_survives_is_given_up(process: HandlerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_lost_in_a_row", LOST_IN_A_ROW_MAX - 1)

    assert [process.call(call("die")).outcome for _ in range(2)] == ["interrupted", "skipped"]


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        ("handlers_under_test", "is not a function"),
        ("handlers_under_test:handel", "has no function 'handel'; did you mean 'handle'?"),
        ("handlers_under_test:not_a_function", "has no function 'not_a_function'"),
        ("handlers_elsewhere:handle", "No module named 'handlers_elsewhere'"),
    ],
)
def test_a_handler_that_cannot_be_found_is_refused_at_once(here: Path, handler: str, problem: str) -> None:
    with pytest.raises(InvalidField) as refused:
        check_handler(BacktestOptions(handler=handler))

    assert problem in refused.value.message
    assert refused.value.hint


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


def test_what_happened_is_the_last_word_on_each_message(spark: Any) -> None:
    places = {"queue": ["q"] * 5, "partition": ["0"] * 5, "offset": [0, 1, 2, 3, 4]}
    runs = [
        (0, 1, "acked", 1, at(1), None, 5.0),
        (2, 3, "retried", 1, at(1), "flaky", 9.0),
        (2, 2, "acked", 2, at(3), None, 7.0),
        (3, 3, "dead", 2, at(3), "", 8.0),
    ]
    names = ("first_offset", "last_offset", "outcome", "attempt", "settled_at", "error", "processing_ms")
    events = {name: list(column) for name, column in zip(names, zip(*runs, strict=True), strict=True)}
    events |= {"queue": ["q"] * 4, "partition": ["0"] * 4}
    results = {**places, "outcome": ["acked", "retried", "acked", "acked", "acked"]}
    frames = [spark.createDataFrame(pa.table(each)) for each in (places, events, results)]

    rows = compared(frames[2], what_happened(frames[0], frames[1])).orderBy("offset").collect()

    assert [(row.id, row.before, row.verdict, row.was_ms, row.was_error) for row in rows] == [
        ("q/0/0", "acked", "same", 5.0, None),
        ("q/0/1", "acked", "broken", 5.0, None),
        ("q/0/2", "acked after retries", "same", 7.0, "flaky"),
        ("q/0/3", "dead after retries", "fixed", 8.0, "flaky"),
        ("q/0/4", "never delivered", "other", None, None),
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Every order was acked, but for those divisible by ten, which died."""
    clock = ManualClock()
    session = Session(tmp_path / "data", background=False, clock=clock, durability="os")
    with Penstock(BlockingSession(session)) as ps:
        orders = ps.create_queue("orders", max_attempts=2, backoff_base_seconds=0)
        orders.push_many([Message(payload={"n": n, "do": WHAT.get(n, "")}) for n in range(40)])
        while leased := orders.lease(40):
            clock.advance(0.02)
            for delivery in leased:
                delivery.nack(error="flaky") if delivery.json()["n"] % 10 == 0 else delivery.ack()
            clock.advance(1)
    return tmp_path / "data"


WHAT = {3: "raise", 10: "raise", 17: "hang", 23: "die", 31: "raise"}


def test_a_handler_is_run_over_history_and_compared(spark: Any, here: Path, data: Path) -> None:
    options = BacktestOptions(handler="handlers_under_test:handle", timeout_seconds=1.0, tasks=1)

    report = PIPELINE.run(Run(spark, str(data), options=options, out=here / "out", queues=["orders"]))

    figures = {name: report.figures[name] for name in ("messages", "same", "broken", "fixed", "failing", "other")}
    assert figures == {"messages": 40, "same": 32, "broken": 4, "fixed": 3, "failing": 1, "other": 0}
    assert [report.figures[f"p{share}_ms_before"] for share in (50, 95, 99)] == [20.0, 20.0, 20.0]
    tables = {table.title: table for table in report.tables}
    assert tables["Outcomes then and now"].rows == [
        ("acked", 32, 1, 2, 1),
        ("dead after retries", 3, 0, 1, 0),
    ]
    assert [row[:2] for row in tables["Newly failing"].rows] == [
        ("orders/0/17", "timed_out"),
        ("orders/0/23", "interrupted"),
        ("orders/0/3", "retried"),
        ("orders/0/31", "retried"),
    ]
    assert tables["Newly failing"].rows[2][2] == "ValueError: cannot do 3"
    assert tables["Newly passing"].rows[0] == ("orders/0/0", "dead after retries", "flaky")
    assert tables["Errors of the handler"].rows[0] == (
        "ValueError: cannot do <n> at handlers_under_test.py:handle", "retried", "orders/0/10", 3, 2,
    )  # fmt: skip
    assert report.summary == (
        "handlers_under_test:handle is mixed: 4 of 36 that were acknowledged would fail; 3 of 4 that failed would pass"
    )
    with Penstock(BlockingSession(Session(data, background=False))) as ps:
        assert ps.queue("orders").stats().dead == 4


@pytest.mark.parametrize(
    ("broken", "fixed", "word"), [(0, 0, "the same"), (1, 9, "mixed"), (2, 0, "worse"), (0, 5, "better")]
)
def test_the_verdict(broken: int, fixed: int, word: str) -> None:
    figures = {"messages": 20, "same": 10, "broken": broken, "fixed": fixed, "failing": 1, "other": 0}

    assert verdict("m:f", figures).startswith(f"m:f is {word}: {broken} of {10 + broken}")


def test_options_are_given_as_text() -> None:
    given = {"handler": "m:f", "limit": "100", "tasks": "4", "share": "0.5", "timeout_seconds": "500ms"}

    assert parse_options(BacktestOptions, given) == BacktestOptions(
        handler="m:f", limit=100, tasks=4, share=0.5, timeout_seconds=0.5
    )


def test_a_backtest_needs_a_queue(here: Path) -> None:
    options = BacktestOptions(handler="handlers_under_test:handle")

    with pytest.raises(InvalidField, match="queue"):
        PIPELINE.check(Run(None, str(here), options=options, out=here))


def test_the_result_of_a_call_is_small() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Result("acked")), type=Result) == Result("acked")
