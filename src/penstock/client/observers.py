"""Observers: hooks into the calls of a session, for metrics and traces in the user's own library.

A session without observers is not wrapped and has no overhead. Otherwise, every observer is called around each push,
lease and settlement, and receives measurements with the names in docs/metrics.md. Observers run in the thread or task
that makes the call, so they must be fast. Their errors are logged and have no other effect.
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
    """One measurement: a count, or a duration in seconds. Names and labels are those in docs/metrics.md."""

    name: str
    kind: Kind
    value: float
    labels: Mapping[str, str] = {}


class Call(msgspec.Struct):
    """One push, lease or settlement. Observers may set `trace`, to store it with the messages of a push."""

    operation: Literal["push", "lease", "settle"]
    queue: str
    group: str = ""
    messages: int = 0
    trace: str | None = None
    traces: list[str] = []  # of the messages that a lease handed out


class Observer:
    """The base class of observers. Override the methods that you need."""

    def measured(self, measurement: Measurement) -> None:
        """Called with every measurement."""

    def around(self, call: Call) -> AbstractContextManager[object]:
        """Called around each call; returns a context manager. An error of the call passes through it."""
        return nullcontext()


class Hook(Observer):
    """A function as an observer of measurements."""

    def __init__(self, function: Callable[[Measurement], object]) -> None:
        self._function = function

    def measured(self, measurement: Measurement) -> None:
        self._function(measurement)


Metrics = bool | Observer | Callable[[Measurement], object]


def observers_of(metrics: Metrics) -> list[Observer]:
    """Return the observers for the argument `metrics=`; none for True and False."""
    if isinstance(metrics, bool):
        return []
    if isinstance(metrics, Observer):
        return [metrics]
    if callable(metrics):
        return [Hook(metrics)]
    raise InvalidField(f"metrics: {metrics!r} is not an observer", hint="pass True, a function or a penstock.Observer")


class Observers:
    """All observers of a session, as one. Their errors are logged and have no other effect."""

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
