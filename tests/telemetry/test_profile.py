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
