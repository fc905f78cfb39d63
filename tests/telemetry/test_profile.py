"""Profiles of a process: what its threads are in, what holds memory, where everything waits; one at a time."""

from __future__ import annotations

import asyncio
import threading
import time
import tracemalloc

import pytest

from penstock import operations as ops
from penstock.embedded.profiles import SECONDS_MAX, memory, profile, threads
from penstock.errors import InvalidField, StateError

LIMIT_SECONDS = 0.1
ATTEMPTS = 3  # the processor has other work: the best of them counts


def busy_with_something(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(1000))


def test_it_names_the_thread_and_the_functions_that_are_busy():
    stop = threading.Event()
    worker = threading.Thread(target=busy_with_something, args=(stop,), name="worker")
    worker.start()

    text = profile(0.1)
    stop.set()
    worker.join()

    (line,) = [line for line in text.splitlines() if line.startswith("worker;") and "busy_with_something" in line][:1]
    stack, count = line.rsplit(" ", 1)
    assert "busy_with_something" in stack
    assert int(count) >= 1


@pytest.mark.parametrize("seconds", [0, -1, SECONDS_MAX + 1, float("nan")])
def test_it_does_not_go_on_for_ever(seconds):
    with pytest.raises(InvalidField, match="seconds"):
        profile(seconds)


def test_one_at_a_time_and_the_next_one_after():
    """The first is under way as soon as it has asked whether to stop."""
    under_way, stop = threading.Event(), threading.Event()

    class Stop(threading.Event):
        def wait(self, timeout=None):
            under_way.set()
            return stop.wait()

    thread = threading.Thread(target=profile, args=(SECONDS_MAX, Stop()))
    thread.start()
    under_way.wait()
    with pytest.raises(StateError):
        profile(0.001)
    stop.set()
    thread.join()

    assert isinstance(profile(0.001), str)


def test_memory_names_the_lines_that_hold_most():
    held: list[bytes] = []
    stop = threading.Event()

    class Stop(threading.Event):
        def wait(self, timeout=None):
            held.append(bytes(1 << 20))
            return super().wait(timeout)

    text = memory(0.2, Stop())
    stop.set()

    assert text.startswith("# resident: ")
    size, count, line = next(row for row in text.splitlines() if not row.startswith("#")).split(" ")
    assert int(size) >= 1 << 20
    assert int(count) >= 1
    assert "test_profile.py:" in line
    assert not tracemalloc.is_tracing()


def test_memory_is_traced_no_longer_than_it_takes_to_read():
    """Reading a trace keeps every other thread waiting: how long depends on the blocks, not on their size."""
    held: list[list[object]] = []
    longest = 0.0

    class Stop(threading.Event):
        def wait(self, timeout=None):
            held.append([object() for _ in range(20_000)])
            return False

    def timed(call):
        def run(*arguments):
            nonlocal longest
            began = time.thread_time()
            try:
                return call(*arguments)
            finally:
                longest = max(longest, time.thread_time() - began)

        return run

    for _ in range(ATTEMPTS):
        held.clear()
        longest = 0.0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tracemalloc, "take_snapshot", timed(tracemalloc.take_snapshot))
            patch.setattr(tracemalloc, "stop", timed(tracemalloc.stop))
            text = memory(SECONDS_MAX, Stop())
        assert "still held" in text
        assert len(held) < 10
        if longest <= LIMIT_SECONDS:
            return
    pytest.fail(f"every thread waited for {longest} s")


def test_large_blocks_do_not_end_a_trace_early():
    held: list[bytes] = []

    class Stop(threading.Event):
        def wait(self, timeout=None):
            held.append(bytes(64 << 20))
            return len(held) > 2

    assert "traced for 0.02 s" in memory(1.0, Stop())
    assert len(held) == 3


def test_memory_is_not_traced_while_somebody_else_does():
    tracemalloc.start()
    try:
        with pytest.raises(StateError, match="already traces allocations"):
            memory(0.1)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


def test_threads_and_tasks_are_shown_where_they_are():
    entered, over = threading.Event(), threading.Event()

    async def wait_long(never: asyncio.Event) -> None:
        await never.wait()

    async def run() -> None:
        never = asyncio.Event()
        waiting = [asyncio.create_task(wait_long(never)) for _ in range(3)]
        await asyncio.sleep(0)
        entered.set()
        await asyncio.to_thread(over.wait)
        for task in waiting:
            task.cancel()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="looping")
    thread.start()
    entered.wait()
    text = threads(loop)
    over.set()
    thread.join()
    loop.close()

    assert "thread looping\n" in text
    assert "asyncio tasks: 3\n" in text
    assert "wait_long" in text.split("asyncio tasks: 3\n")[1].split("asyncio tasks")[0]


def test_whoever_asks_for_something_else_is_told_what_there_is():
    with pytest.raises(InvalidField, match="what"):
        ops.TakeProfile("disk", 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidField, match="seconds"):
        ops.TakeProfile("memory", 61)
