"""Observers: whoever wants to know what a session does, for metrics and traces of a library of one's own.

A session that nobody observes is not wrapped and costs nothing more. One that is calls every observer around each push,
lease and settlement, and hands over measurements, under the names of docs/metrics.md. Observers are called by whichever
thread or task works, so they must be brief. What they raise is logged and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Final, Literal

import msgspec

from penstock.clock import Clock
from penstock.errors import InvalidField, PenstockError

logger: Final = logging.getLogger("penstock.client")
Kind = Literal["counter", "histogram"]


class Measurement(msgspec.Struct, frozen=True):
    """One number: how many, or how many seconds. Names and labels are those of docs/metrics.md."""

    name: str
    kind: Kind
    value: float
    labels: Mapping[str, str] = {}


class Call(msgspec.Struct):
    """One push, lease or settlement. `trace` is what its observers want to be stored with the messages of a push."""

    operation: Literal["push", "lease", "settle"]
    queue: str
    group: str = ""
    messages: int = 0
    trace: str | None = None
    traces: list[str] = []  # of the messages that a lease handed out


class Observer:
    """Derive from it and override what you need."""

    def measured(self, measurement: Measurement) -> None:
        """Something was counted or timed."""

    def around(self, call: Call) -> AbstractContextManager[object]:
        """Entered before a call, left after it; an error of the call passes through."""
        return nullcontext()


class Hook(Observer):
    """A function as an observer of measurements."""

    def __init__(self, function: Callable[[Measurement], object]) -> None:
        self._function = function

    def measured(self, measurement: Measurement) -> None:
        self._function(measurement)


Metrics = bool | Observer | Callable[[Measurement], object]


def observers_of(metrics: Metrics) -> list[Observer]:
    """The observers that `metrics=` stands for; none for True and False."""
    if isinstance(metrics, bool):
        return []
    if isinstance(metrics, Observer):
        return [metrics]
    if callable(metrics):
        return [Hook(metrics)]
    raise InvalidField(f"metrics: {metrics!r} is not an observer", hint="pass True, a function or a penstock.Observer")


class Observers:
    """All observers of a session, as one. What they raise is logged and changes nothing."""

    def __init__(self, observers: list[Observer]) -> None:
        self._observers = observers

    def measured(self, name: str, kind: Kind, value: float, **labels: str) -> None:
        """Hand a measurement over."""
        measurement = Measurement(name, kind, value, labels)
        for observer in self._observers:
            with _logged(observer):
                observer.measured(measurement)

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        """Around one call; counts its refusal."""
        with ExitStack() as stack:
            for observer in self._observers:
                with _logged(observer):
                    stack.enter_context(observer.around(call))
            try:
                yield
            except PenstockError as error:
                self.measured("penstock_refused_requests", "counter", 1, queue=call.queue, code=error.code)
                raise

    @contextmanager
    def settling(self, call: Call, outcome: str, clock: Clock) -> Iterator[None]:
        """Around a settlement: its count and its time."""
        started = clock.monotonic()
        with self.around(call):
            yield
        seconds = (clock.monotonic() - started) / 1e6
        self.measured("penstock_settled_messages", "counter", call.messages, queue=call.queue, outcome=outcome)
        self.measured("penstock_settle_duration_seconds", "histogram", seconds, queue=call.queue)


@contextmanager
def _logged(observer: Observer) -> Iterator[None]:
    try:
        yield
    except Exception:
        with suppress(Exception):
            logger.exception("the observer %s failed", type(observer).__name__)
