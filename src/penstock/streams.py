"""Stages: small streams from one queue to another, with state, in transactions.

A `Stream` declares what happens to the messages of a queue: filter, map, the key, a window, an aggregate. `to` turns it
into a `Stage`, which runs on a client (`client/_async/stage.py`) or, with the same result, on Spark
(`spark/stages.py`). Nothing here does I/O.

Functions receive the value of a message: its decoded JSON, its text or its bytes. They must depend on nothing else,
because a message whose transaction failed is processed again.

`PartitionFold` is the state of one partition of the source. Its rules give the same result however the messages are
divided into batches:

- The watermark is the greatest event time of the messages before this one, minus the lateness. It never decreases.
- A message is late, and is dropped, if its window ended at or before the watermark.
- A window whose end the watermark has reached is closed: its result is emitted once, and its state is dropped.
- With `idle`, the windows of a partition without a push for that time are closed: by the clock, or when the next
  message arrives, whichever is first.
- Without a window, the result of every key that has changed is emitted once for each transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from penstock.envelopes import envelope_json
from penstock.errors import InvalidField
from penstock.model import ContentType, Message, check_name, check_seconds, to_datetime

R = TypeVar("R")
Run = Callable[..., R]
Function = Callable[[Any], Any]
WATERMARK: Final = "watermark"  # keys of states contain a slash, this one does not, nor the next
HEARD: Final = "heard"
FOREVER: Final = -1  # in place of the start of a window
MICROS: Final = 1_000_000

_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
_decode: Final = msgspec.json.decode


class Step(NamedTuple):
    """A function of a stream: a filter, a map or a key."""

    kind: Literal["filter", "map"]
    function: Function


class Window(NamedTuple):
    """Tumbling windows of event time."""

    size_us: int
    lateness_us: int
    idle_us: int  # of silence, after which windows are closed; 0: they wait for a message
    at: Function | None  # of a value: its event time; None: when the message was pushed


class Aggregate(NamedTuple):
    """A fold over the values of a key."""

    initial: bytes  # JSON: every key begins with a copy
    add: Callable[[Any, Any], Any]
    result: Function | None


class Element(NamedTuple):
    """A message of the source, or its value after some steps."""

    value: Any
    key: str | None
    pushed_at: int


@dataclass(frozen=True)
class Stream(Generic[R]):
    """The messages of a queue and the steps applied to them. Every method returns a new stream."""

    source: str
    steps: tuple[Step, ...] = ()
    key: Function | None = None
    window: Window | None = None
    fold: Aggregate | None = None
    runner: Callable[[Stage[R]], Run[R]] | None = None

    def __post_init__(self) -> None:
        check_name(self.source)

    def filter(self, function: Function) -> Stream[R]:
        """Keep the values for which `function` is true."""
        return self._with_step("filter", function)

    def map(self, function: Function) -> Stream[R]:
        """Replace each value with `function(value)`."""
        return self._with_step("map", function)

    def key_by(self, function: Function) -> Stream[R]:
        """Set the key of each value, as text. The default is the key of the message.

        For an aggregate, all messages of a key must be in one partition: the source has one partition, or is a queue
        that another stage writes with `key_by(…).to(…)`.
        """
        _check_function(function, "key_by")
        self._check_open("key_by")
        return replace(self, key=function)

    def tumbling(
        self, seconds: float, at: Function | None = None, lateness: float = 0.0, idle: float | None = None
    ) -> Stream[R]:
        """Group values into consecutive windows of `seconds`, by event time.

        `at(value)` returns the event time: an aware datetime, RFC 3339 text or seconds since 1970. The default is the
        time of the push. A message may arrive up to `lateness` seconds after a later one; otherwise it is dropped.
        Windows are closed by later messages; with `idle` also after that number of seconds without a push.
        """
        if at is not None:
            _check_function(at, "at")
        size, late = check_seconds(seconds, "seconds"), check_seconds(lateness, "lateness")
        if round(size * MICROS) < 1:
            raise InvalidField(f"seconds: {seconds!r} is not a window length")
        self._check_open("tumbling")
        silence = 0.0 if idle is None else check_seconds(idle, "idle")
        if idle is not None and round(silence * MICROS) < 1:
            raise InvalidField(f"idle: {idle!r} would close every window at once", hint="use None to wait for messages")
        return replace(self, window=Window(round(size * MICROS), round(late * MICROS), round(silence * MICROS), at))

    def aggregate(self, initial: Any, add: Callable[[Any, Any], Any], result: Function | None = None) -> Stream[R]:
        """Fold the values of each key and window: `state = add(state, value)`, starting with a copy of `initial`.

        States are stored as JSON. The state, or `result(state)`, is emitted.
        """
        _check_function(add, "add")
        if result is not None:
            _check_function(result, "result")
        self._check_open("aggregate")
        try:
            encoded = _encode(initial)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidField(f"initial: {initial!r} is not JSON: {error}") from None
        return replace(self, fold=Aggregate(encoded, add, result))

    def to(self, sink: str, name: str | None = None) -> Stage[R]:
        """Return a stage that writes to the queue `sink`. Its name is that of its group and state, `NAME.state`."""
        if self.window is not None and self.fold is None:
            raise InvalidField("tumbling: a window needs an aggregate", hint="add .aggregate(initial, add)")
        return Stage(self, check_name(sink), check_name(name or f"{self.source}-to-{sink}", "name"))

    def _with_step(self, kind: Literal["filter", "map"], function: Function) -> Stream[R]:
        _check_function(function, kind)
        self._check_open(kind)
        return replace(self, steps=(*self.steps, Step(kind, function)))

    def _check_open(self, method: str) -> None:
        if self.fold is not None:
            hint = "send it to a queue with .to(…) and start another stream from there"
            raise InvalidField(f"{method}: nothing can come after aggregate", hint=hint)

    def elements(self, elements: Iterable[Element]) -> Iterator[Element]:
        """What filter, map and key_by make of each element."""
        steps, key = self.steps, self.key
        for element in elements:
            value = element.value
            for kind, function in steps:
                if kind == "map":
                    value = function(value)
                elif not function(value):
                    break
            else:
                yield Element(value, element.key if key is None else _key(key(value)), element.pushed_at)


def _check_function(function: object, name: str) -> None:
    if not callable(function):
        raise InvalidField(f"{name}: {function!r} is not a function")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise InvalidField(f"key_by: {key!r} is not text", hint="return str(…)")
    return key


def value_of(payload: bytes, kind: ContentType) -> Any:
    """Return the value of a message: its decoded JSON, its text or its bytes."""
    if kind == ContentType.TASK:
        return _decode(envelope_json(payload))
    if kind in (ContentType.JSON, ContentType.TOMBSTONE):
        return _decode(payload)
    return payload.decode() if kind == ContentType.TEXT else payload


def event_time(window: Window, element: Element) -> int:
    """Return the event time of a value, in µs."""
    if window.at is None:
        return element.pushed_at
    at = window.at(element.value)
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidField(f"at: {at} has no time zone", hint="use datetime.now(timezone.utc) or RFC 3339 text")
        return round(at.astimezone(UTC).timestamp() * MICROS)
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise InvalidField(f"at: {at!r} is not a time", hint="return a datetime, RFC 3339 text or seconds since 1970")
    return round(at * MICROS)


@dataclass(frozen=True)
class Stage(Generic[R]):
    """A stream and the queue that its results go to."""

    stream: Stream[R]
    sink: str
    name: str

    @property
    def state_queue(self) -> str:
        return f"{self.name}.state"

    @property
    def run(self) -> Run[R]:
        """Process messages until stopped; see `Queues.stream` of the client, and docs/streams.md."""
        if self.stream.runner is None:
            hint = "start with ps.stream(…) of an open Penstock; a bare definition runs only on Spark"
            raise InvalidField("run: this stage belongs to no client", hint=hint)
        return self.stream.runner(self)

    def to_spark(self, spark: Any, url: str) -> Any:
        """Run the same stage on Spark over a data directory or a broker. Returns a DataFrame of its results."""
        from penstock.spark.stages import to_spark

        return to_spark(self, spark, url)


class Output(NamedTuple):
    """A result. Without an aggregate, it has no window, and its payload is the value alone."""

    key: str | None
    value: Any
    start: int | None = None  # of the window, µs

    def payload(self, stage: Stage[Any]) -> Any:
        """What the message says."""
        fold, window = stage.stream.fold, stage.stream.window
        if fold is None:
            return self.value
        result = {"key": self.key, "value": self.value if fold.result is None else fold.result(self.value)}
        if window is not None and self.start is not None:
            bounds = to_datetime(self.start), to_datetime(self.start + window.size_us)
            result |= {"window_start": bounds[0].isoformat(), "window_end": bounds[1].isoformat()}
        return result


def messages_of(stage: Stage[Any], outputs: Sequence[Output]) -> list[Message]:
    """Return the messages for the sink."""
    return [Message(payload=output.payload(stage), key=output.key) for output in outputs]


class PartitionFold:
    """The state of a stage for one partition of its source."""

    def __init__(self, stage: Stage[Any]) -> None:
        self._stage = stage
        self.watermark = 0
        self.late = 0
        self._open: dict[int, dict[str, Any]] = {}  # start of the window → key → state
        self._stored: set[str] = set()  # keys in the queue of states
        self._changed: dict[tuple[int, str], None] = {}
        self._closed: list[str] = []
        self._watermark_stored = 0
        self.heard = self._heard_stored = 0  # when the last message was pushed; kept with `idle` only

    def restore(self, key: str | None, value: Any) -> None:
        """Apply a stored change, in the order of the queue."""
        assert key is not None
        if key == WATERMARK:
            self.watermark = self._watermark_stored = value
            return
        if key == HEARD:
            self.heard = self._heard_stored = value
            return
        start, _, name = key.partition("/")
        if value is None:
            self._open.get(int(start), {}).pop(name, None)
            self._stored.discard(key)
        else:
            self._open.setdefault(int(start), {})[name] = value[0]
            self._stored.add(key)

    def feed(self, elements: Iterable[Element]) -> list[Output]:
        """Process messages in order of offset. Returns the results. If this raises, discard the fold."""
        stream = self._stage.stream
        if stream.fold is None:
            return [Output(element.key, element.value) for element in stream.elements(elements)]
        if stream.window is None:
            self._add_all(stream.elements(elements), stream.fold)
            return [Output(key, self._open[start][key]) for start, key in self._changed]
        self._add_windowed(stream.elements(elements), stream.fold, stream.window)
        return self._close(stream.window)

    def _add_all(self, elements: Iterable[Element], fold: Aggregate) -> None:
        states = self._open.setdefault(FOREVER, {})
        for element in elements:
            key = element.key or ""
            states[key] = fold.add(states[key] if key in states else _decode(fold.initial), element.value)
            self._changed[FOREVER, key] = None

    def _add_windowed(self, elements: Iterable[Element], fold: Aggregate, window: Window) -> None:
        size, lateness, watermark, idle = window.size_us, window.lateness_us, self.watermark, window.idle_us
        for element in elements:
            if idle:
                if self.is_silent(window, element.pushed_at):
                    watermark = max(watermark, max(self._open) + size)
                self.heard = max(self.heard, element.pushed_at)
            at = event_time(window, element)
            start = at - at % size
            if start + size <= watermark:
                self.late += 1
                continue
            states = self._open.setdefault(start, {})
            key = element.key or ""
            states[key] = fold.add(states[key] if key in states else _decode(fold.initial), element.value)
            self._changed[start, key] = None
            if at - lateness > watermark:
                watermark = at - lateness
        self.watermark = watermark

    def is_silent(self, window: Window, now: int) -> bool:
        """Whether windows are open although nothing was pushed for the idle time."""
        return bool(window.idle_us and self._open and self.heard) and now - self.heard >= window.idle_us

    def close_silent(self, window: Window, now: int) -> list[Output]:
        """Close all windows of an idle partition. Returns the results."""
        if not self.is_silent(window, now):
            return []
        self.watermark = max(self.watermark, max(self._open) + window.size_us)
        return self._close(window)

    def _close(self, window: Window) -> list[Output]:
        outputs: list[Output] = []
        for start in sorted(start for start in self._open if start + window.size_us <= self.watermark):
            for key, state in sorted(self._open.pop(start).items()):
                outputs.append(Output(key, state, start))
                self._closed.append(f"{start}/{key}")
                self._changed.pop((start, key), None)
        return outputs

    def changes(self) -> list[Message]:
        """Return the changes since the last call, for the state queue. Call it once per transaction."""
        changes = [Message(payload=None, key=key) for key in self._closed if key in self._stored]
        self._stored.difference_update(self._closed)
        for start, key in self._changed:
            changes.append(Message(payload=[self._open[start][key]], key=f"{start}/{key}"))
            self._stored.add(f"{start}/{key}")
        if self.watermark != self._watermark_stored:
            changes.append(Message(payload=self.watermark, key=WATERMARK))
            self._watermark_stored = self.watermark
        if self.heard != self._heard_stored:
            changes.append(Message(payload=self.heard, key=HEARD))
            self._heard_stored = self.heard
        self._changed.clear()
        self._closed.clear()
        return changes


@dataclass
class StageReport:
    """What a run of a stage has processed."""

    messages: int = 0  # acknowledged
    outputs: int = 0
    late: int = 0
    failed: int = 0  # deliveries whose function raised
    transactions: int = 0
    restarts: int = 0  # times that another instance had taken over, or the membership was lost
