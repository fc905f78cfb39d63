"""The profile of a process: what its threads are in, one profile at a time."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import InvalidField, StateError
from penstock.telemetry.profile import SECONDS_MAX, profile


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
    stop, started = threading.Event(), threading.Event()

    def first() -> None:
        started.set()
        profile(SECONDS_MAX, stop)

    thread = threading.Thread(target=first)
    thread.start()
    started.wait()
    refused = False
    while not refused:
        try:
            profile(0.001)
        except StateError:
            refused = True
    stop.set()
    thread.join()

    assert profile(0.001)
