"""Stages: state, output and acknowledgement happen together, whatever stops, and however often."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import penstock
from penstock import Message
from penstock.batch import Batch
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField, InvalidName, MemberFenced
from penstock.model import to_micros
from penstock.requests import OwnOperation, PushOperation
from penstock.streams import Element, PartitionFold, StageReport, Stream
from tests.support.accounts import assert_accounts
from tests.support.brokers import BrokerThread
from tests.support.dose import dose
from tests.support.forgetful import ForgetfulDisk, PowerCut

SIZE, LATENESS = 10, 3


def opened(disk: ForgetfulDisk, clock: ManualClock, seed: int = 1) -> tuple[Session, Penstock]:
    session = Session(
        None, disk=disk, clock=clock, rng=random.Random(seed), background=False, journal_file_bytes=1 << 16
    )
    return session, Penstock(BlockingSession(session))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def ps(clock):
    return opened(ForgetfulDisk(), clock)[1]


def windowed(ps: Any) -> Any:
    stream = ps if isinstance(ps, Stream) else ps.stream("orders")
    return (
        stream.filter(lambda order: order["n"] >= 0)
        .map(lambda order: {**order, "n": order["n"] + 1})
        .tumbling(SIZE, at=lambda order: order["at"], lateness=LATENESS)
        .aggregate(0, lambda total, order: total + order["n"])
        .to("totals")
    )


def expected(messages: list[tuple[str, int, int]]) -> Counter[tuple[str, int, int]]:
    """The rules again, in plain words, for one partition: (key, n, at) → (key, sum, start)."""
    sums: dict[tuple[int, str], int] = {}
    watermark = 0
    for key, n, at in messages:
        start = at // SIZE * SIZE
        if n >= 0 and start + SIZE > watermark:
            sums[start, key] = sums.get((start, key), 0) + n + 1
            watermark = max(watermark, at - LATENESS)
    return Counter((key, total, start) for (start, key), total in sums.items() if start + SIZE <= watermark)


def results(ps: Penstock) -> Counter[tuple[str, int, int]]:
    if "totals" not in ps.queues():
        return Counter()
    found = [message.json() for message in ps.queue("totals").read(limit=10_000)]
    seconds = [to_micros(row["window_start"], "window_start") // 1_000_000 for row in found]
    return Counter((row["key"], row["value"], start) for row, start in zip(found, seconds, strict=True))


def some(rng: random.Random, count: int, since: int = 0) -> list[tuple[str, int, int]]:
    return [
        (f"k{rng.randrange(4)}", rng.randint(-2, 9), max(0, since + number // 2 + rng.randint(-9, 9)))
        for number in range(count)
    ]


def push(ps: Penstock, messages: list[tuple[str, int, int]], partition: int = 0) -> None:
    rows = [Message(payload={"n": n, "at": at}, key=key, partition=partition) for key, n, at in messages]
    ps.queue("orders").push_many(rows)


@pytest.mark.parametrize("seed", range(dose(30, 1000)))
def test_any_history_of_runs_restarts_and_compactions_gives_what_the_rules_say(seed):
    rng, clock, disk = random.Random(seed), ManualClock(), ForgetfulDisk(seed)
    session, ps = opened(disk, clock, seed)
    ps.create_queue("orders", partitions=2, ordering=rng.choice(["none", "partition"]))
    log: dict[int, list[tuple[str, int, int]]] = {0: [], 1: []}
    for number in range(8):
        partition = rng.randrange(2)
        new = some(rng, rng.randint(1, 30), 10 * number)
        log[partition] += new
        push(ps, new, partition)
        windowed(ps).run(idle_seconds=0, batch=rng.randint(1, 20))
        step = rng.choice(["kill", "seal", "compact", "nothing"])
        if step == "kill":
            disk.kill()
            session, ps = opened(disk, clock, seed)
        elif step != "nothing":
            ps.seal()
            if step == "compact":
                ps.queue("orders-to-totals.state").compact()
        assert results(ps) == expected(log[0]) + expected(log[1])
        assert_accounts(session.shard)


def test_a_power_cut_at_any_operation_leaves_neither_gap_nor_duplicate():
    def work(ps: Penstock) -> None:
        ps.create_queue("orders", exist_ok=True)
        for part in (first, second):
            push(ps, part[ps.queue("orders").stats().messages if part is first else 0 :])
            windowed(ps).run(idle_seconds=0, batch=7)
            ps.seal()

    rng = random.Random(5)
    first, second = some(rng, 20), some(rng, 20, 20)
    disk = ForgetfulDisk()
    session, ps = opened(disk, ManualClock())
    before = disk.operations
    work(ps)
    operations = disk.operations - before
    assert results(ps) == expected(first + second)
    assert sum(results(ps).values()) > 3

    for operation in range(1, operations + 1):
        disk = ForgetfulDisk(operation)
        session, ps = opened(disk, ManualClock())
        disk.crash_at(operation)
        with pytest.raises(PowerCut):
            work(ps)
        disk = disk.crash()
        session, ps = opened(disk, ManualClock(), 2)
        ps.create_queue("orders", exist_ok=True)
        windowed(ps).run(idle_seconds=0, batch=7)
        done = ps.queue("orders").stats().messages
        push(ps, (first + second)[done:])
        windowed(ps).run(idle_seconds=0, batch=7)
        assert results(ps) == expected(first + second), f"operation {operation}"
        assert_accounts(session.shard)


def test_a_stage_whose_partition_went_to_another_is_refused_as_a_whole_and_goes_on_with_the_right_state(ps, clock):
    ps.create_queue("orders")
    push(ps, [("a", 1, 1), ("a", 2, 2)])
    taken: list[int] = []

    def slow(total: int, order: dict[str, int]) -> int:
        if not taken:
            taken.append(1)
            # While this instance is at work, the group goes on without it: another one does the same messages.
            ps.queue("orders").delete_group("slow")
            fast = ps.stream("orders").aggregate(0, lambda total, order: total + order["n"]).to("sums", name="slow")
            assert fast.run(idle_seconds=0).messages == 2
        return total + order["n"]

    report = ps.stream("orders").aggregate(0, slow).to("sums", name="slow").run(idle_seconds=0)

    assert (report.restarts, report.messages) == (1, 0)
    assert [message.json() for message in ps.queue("sums").read()] == [{"key": "a", "value": 3}]


def test_two_instances_share_the_partitions_and_hand_over_their_state(tmp_path):
    keys = [f"k{number}" for number in range(20)]

    def push_one_of_each() -> None:
        ps.queue("orders").push_many([Message(payload={"n": 1}, key=key) for key in keys])

    def sums() -> dict[str, int]:
        found = (message.json() for message in ps.queue("sums").read(limit=10_000)) if "sums" in ps.queues() else ()
        return {row["key"]: row["value"] for row in found}

    def run() -> None:
        reports.append(stage.run(stop=stop, batch=3, session_seconds=1.0))

    reports: list[StageReport] = []
    with penstock.open(tmp_path) as ps:
        ps.create_queue("orders", partitions=4)
        stage = ps.stream("orders").aggregate(0, lambda total, order: total + order["n"]).to("sums")
        stop = threading.Event()
        threads = [threading.Thread(target=run, daemon=True) for _ in range(2)]
        push_one_of_each()
        threads[0].start()
        eventually(lambda: sums() == dict.fromkeys(keys, 1))
        threads[1].start()
        eventually(lambda: all(len(m.partitions) == 2 for m in ps.queue("orders").members("orders-to-sums")[:2][1:]))
        push_one_of_each()
        eventually(lambda: sums() == dict.fromkeys(keys, 2))
        stop.set()
        for thread in threads:
            thread.join(30)

    assert [report.messages > 0 for report in reports] == [True, True]
    assert sum(report.messages for report in reports) == 40


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what other threads do."""
    pause, left = threading.Event(), 600
    while not condition():
        left -= 1
        assert left, "it did not happen"
        pause.wait(0.05)


def test_a_function_that_fails_costs_its_message_attempts_and_nobody_else_anything(ps):
    ps.create_queue("orders", max_attempts=2, backoff_base_seconds=0.0)
    push(ps, [("a", 1, 1), ("a", -1, 2), ("a", 2, 3)])

    def add(total: list[int], order: dict[str, int]) -> list[int]:
        total.append(order["n"])
        if order["n"] < 0:
            raise ValueError("negative")
        return total

    stage = ps.stream("orders").aggregate([], add).to("lists")
    for _ in range(3):
        stage.run(idle_seconds=0)

    assert ps.queue("lists").read(limit=100)[-1].json() == {"key": "a", "value": [1, 2]}
    (letter,) = ps.queue("orders").dlq.list()
    assert "ValueError: negative" in str(letter.headers)


def test_messages_that_come_too_late_are_counted_and_dropped(ps):
    ps.create_queue("orders")
    push(ps, [("a", 1, 5), ("a", 1, 100), ("a", 1, 6)])

    report = windowed(ps).run(idle_seconds=0)

    assert (report.late, report.outputs) == (1, 1)


def silent(ps: Any, name: str = "silent") -> Any:
    return (
        ps.stream("orders")
        .tumbling(SIZE, at=lambda order: order["at"], idle=60)
        .aggregate(0, lambda total, order: total + order["n"])
        .to("totals", name=name)
    )


def test_windows_of_a_source_that_falls_silent_are_closed_by_the_clock(ps, clock):
    ps.create_queue("orders")
    push(ps, [("a", 1, 5), ("b", 2, 25), ("b", 3, 26)])

    report = silent(ps).run(idle_seconds=0)
    assert (report.outputs, results(ps)) == (1, Counter({("a", 1, 0): 1}))
    clock.advance(59)
    assert silent(ps).run(idle_seconds=0).outputs == 0
    clock.advance(1)
    report = silent(ps).run(idle_seconds=0)  # also after a restart, and without a message
    assert (report.messages, report.outputs) == (0, 1)
    assert results(ps) == Counter({("a", 1, 0): 1, ("b", 5, 20): 1})
    assert silent(ps).run(idle_seconds=0).outputs == 0  # once

    push(ps, [("b", 9, 27), ("c", 1, 31)])
    report = silent(ps).run(idle_seconds=0)
    assert (report.late, report.outputs) == (1, 0)


def test_a_silence_between_two_messages_closes_windows_whoever_was_there_to_see_it(ps, clock):
    ps.create_queue("orders")
    push(ps, [("a", 1, 5)])
    clock.advance(60)
    push(ps, [("a", 2, 6), ("a", 3, 15)])  # the first is late: its window was over by then

    report = silent(ps).run(idle_seconds=0)

    assert (report.late, results(ps)) == (1, Counter({("a", 1, 0): 1}))


def test_an_instance_that_was_given_up_closes_no_window(ps, clock):
    ps.create_queue("orders")
    push(ps, [("a", 1, 5)])
    assert silent(ps).run(idle_seconds=0).messages == 1
    clock.advance(60)

    closed: list[int] = []

    def slow(total: int) -> int:
        if not closed:
            closed.append(1)
            # While this instance is about to close the window, the group goes on without it, and closes it.
            ps.queue("orders").delete_group("silent")
            ps.queue("orders").create_group("silent", start="latest")
            assert silent(ps).run(idle_seconds=0).outputs == 1
        return total

    stage = silent(ps)
    fold = stage.stream.fold._replace(result=slow)
    report = replace(stage, stream=replace(stage.stream, fold=fold)).run(idle_seconds=0)

    assert (report.restarts, report.outputs) == (1, 0)
    assert results(ps) == Counter({("a", 1, 0): 1})


def test_without_an_aggregate_every_message_is_one_transaction_with_its_output(ps):
    ps.queue("words").push_many(["a", "bb", "ccc"])

    report = (
        ps.stream("words").filter(lambda word: len(word) > 1).map(len).key_by(str).to("lengths").run(idle_seconds=0)
    )

    assert report.outputs == 2
    assert [(message.key, message.json()) for message in ps.queue("lengths").read()] == [("2", 2), ("3", 3)]
    assert "words-to-lengths.state" not in ps.queues()


def test_a_key_that_may_be_in_several_partitions_is_refused(ps):
    ps.create_queue("orders", partitions=2)

    with pytest.raises(InvalidField, match="several partitions"):
        ps.stream("orders").key_by(str).aggregate(0, max).to("sums").run(idle_seconds=0)


def test_a_source_that_has_grown_is_refused(ps):
    ps.create_queue("orders", partitions=2)
    stage = ps.stream("orders").aggregate(0, lambda total, order: total + 1).to("counts")
    stage.run(idle_seconds=0)
    ps.update_queue("orders", partitions=3)

    with pytest.raises(InvalidField, match="when its source had 2 partitions"):
        stage.run(idle_seconds=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda stream: stream.filter(1), "filter: 1 is not a function"),
        (lambda stream: stream.tumbling(0), "seconds: 0 is not a window length"),
        (lambda stream: stream.tumbling(-1), "seconds"),
        (lambda stream: stream.aggregate(object(), max), "initial"),
        (lambda stream: stream.aggregate(0, max).map(str), "nothing can come after aggregate"),
        (lambda stream: stream.tumbling(1).to("sink"), "a window needs an aggregate"),
        (lambda stream: stream.to("sink").run(), "belongs to no client"),
    ],
)
def test_a_definition_that_makes_no_sense_is_refused_at_once(wrong, message):
    with pytest.raises(InvalidField, match=message):
        wrong(Stream("orders"))


def test_names_are_checked():
    with pytest.raises(InvalidName):
        Stream("no good")
    with pytest.raises(InvalidName):
        Stream("orders").to("a/b")


def test_however_messages_are_cut_into_batches_the_result_is_the_same():
    rng = random.Random(3)
    elements = [Element({"n": n, "at": at}, key, 0) for key, n, at in some(rng, 300)]
    stage = windowed(Stream("orders"))

    def outputs(batch: int) -> list[Any]:
        fold = PartitionFold(stage)
        return sorted(out for first in range(0, 300, batch) for out in fold.feed(elements[first : first + batch]))

    assert outputs(300) == outputs(1) == outputs(17)
    assert len(outputs(300)) > 10


def test_over_the_network_and_with_asyncio_too(tmp_path):
    async def run(url: str) -> None:
        async with penstock.aio.connect(url) as aps:
            report = await windowed(aps).run(idle_seconds=0)
            assert report.messages == 40

    messages = some(random.Random(9), 40)
    broker = BrokerThread(Session(tmp_path, background=False), protocol="penstock")
    try:
        with penstock.connect(broker.url) as ps:
            ps.create_queue("orders")
            push(ps, messages)
            asyncio.run(run(broker.url))
            assert results(ps) == expected(messages)
            assert windowed(ps).run(idle_seconds=0).messages == 0
    finally:
        broker.stop()


@pytest.mark.parametrize("protocol", ["penstock", "http"])
def test_windows_of_a_silent_source_are_closed_over_the_network_too(tmp_path, protocol):
    broker = BrokerThread(Session(tmp_path, background=False), protocol=protocol)
    try:
        with penstock.connect(broker.url) as ps:
            ps.create_queue("orders")
            push(ps, [("a", 1, 5)])
            stage = (
                ps.stream("orders")
                .tumbling(SIZE, at=lambda order: order["at"], idle=0.02)
                .aggregate(0, lambda total, order: total + order["n"])
                .to("totals")
            )
            assert stage.run(idle_seconds=1).outputs == 1
            assert results(ps) == Counter({("a", 1, 0): 1})

            nobody = OwnOperation("orders", "orders-to-totals", "nobody", 1, ("0",))
            push_too = PushOperation("totals", Batch.build([b"x"]))
            with pytest.raises(MemberFenced):
                ps.session.transact([nobody, push_too])
            assert results(ps) == Counter({("a", 1, 0): 1})
    finally:
        broker.stop()
