"""`window`: a stream from one queue to another, window by window, declared by a spec.

`windowing` has the functions from DataFrame to DataFrame, `window_spec` the spec. Here they are run: as a stream that
goes on where it was stopped, its state in RocksDB; or over history, to look at what would come out.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from penstock import limits
from penstock.errors import InvalidField
from penstock.spark import stream_to
from penstock.spark.failures import cause
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table
from penstock.spark.pipelines.state import read_state, write_state
from penstock.spark.pipelines.windowing.frames import EVENT_AT, WANTED, as_messages, events_of, windowed, windows
from penstock.spark.pipelines.windowing.spec import WindowSpec, checked, load_spec
from penstock.units import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["PIPELINE", "WindowSpec", "windowed"]

FILE: Final = "window.json"
LOOK_SECONDS: Final = 1
_STATE: Final = "spark.sql.streaming.stateStore."
STATE_SETTINGS: Final = {
    f"{_STATE}providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}rocksdb.changelogCheckpointing.enabled": "true",
}


class WindowOptions(Options, frozen=True, kw_only=True):
    """Options of `window`."""

    spec: Annotated[str, Meta(description="A TOML file, or module:NAME of a WindowSpec in Python.")]
    available_now: Annotated[bool, Meta(description="Take what is there, then stop.")] = False
    preview: Annotated[int, Meta(description="Show so many windows over history, and push nothing.", ge=1)] | None = (
        None
    )
    trigger_seconds: Annotated[float, Meta(description="How often a micro-batch starts.", ge=0)] = 1.0
    messages_max: Annotated[int, Meta(description="Messages of one micro-batch.", ge=1)] | None = None


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a directory's checkpoint belongs to."""

    url: str
    spec: WindowSpec


class Counted:
    """What a query has done so far, from what it says of its micro-batches."""

    def __init__(self) -> None:
        self._batches: dict[int, dict[str, int]] = {}
        self.watermark: str | None = None

    def look(self, query: StreamingQuery) -> None:
        """Learn from its last micro-batches."""
        for each in query.recentProgress:
            self.learn(msgspec.json.decode(each.json))

    def learn(self, progress: Mapping[str, Any]) -> None:
        """Add one micro-batch; one that is known already is not added again."""
        found = {"late": sum(state["numRowsDroppedByWatermark"] for state in progress["stateOperators"])}
        for observed in progress.get("observedMetrics", {}).values():
            found |= {name: int(value or 0) for name, value in observed.items()}
        # Spark repeats the last batch, with nothing in it, while it waits.
        if progress["batchId"] not in self._batches or progress["numInputRows"]:
            self._batches[progress["batchId"]] = found
        self.watermark = progress.get("eventTime", {}).get("watermark") or self.watermark

    @property
    def figures(self) -> dict[str, int]:
        """All batches together."""
        names = ("messages", "unwanted", "untimed", "late", "windows")
        return {name: sum(batch.get(name, 0) for batch in self._batches.values()) for name in names}


def run(run: Run) -> Report:
    """Run a spec, as a stream or as a preview."""
    options: WindowOptions = run.options
    spec = find_spec(options.spec)
    if options.preview is not None:
        return _preview(run, spec, options.preview)
    _keep(run, spec)
    with _settings(run.spark):
        return _streamed(run, spec, options)


def check(run: Run) -> None:
    """Refuse a spec that is none, queues beside it, and a stream with an end."""
    if run.queues:
        raise InvalidField("queue: the spec names the queues", hint="leave --queue out")
    find_spec(run.options.spec)
    if run.options.preview is None and run.until is not None:
        raise InvalidField("until: a stream has no end", hint="--preview shows windows over a time that has passed")


def find_spec(name: str) -> WindowSpec:
    """A spec from a file, or from a module as `module:NAME`."""
    module, colon, attribute = name.partition(":")
    if not colon or name.endswith(".toml"):
        return load_spec(Path(name))
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise InvalidField(f"spec: {module!r} cannot be imported: {error}") from None
    if not isinstance(found, WindowSpec):
        raise InvalidField(
            f"spec: {name} is no WindowSpec", hint="NAME = WindowSpec(source=…, sink=…, window=Shape(…))"
        )
    return checked(found)


def _keep(run: Run, spec: WindowSpec) -> None:
    """Note what the checkpoint belongs to. The state of one spec means nothing to another."""
    now, path = Kept(url=run.url, spec=spec), run.out / FILE
    before = read_state(path, Kept)
    if before is not None and before != now:
        changed = [name for name in WindowSpec.__struct_fields__ if getattr(before.spec, name) != getattr(spec, name)]
        what = f"{', '.join(changed)} changed" if changed else f"it ran on {before.url}"
        hint = "give another --out to start over, or remove that directory"
        raise InvalidField(f"spec: {what} since {run.out} was begun, and its state is of no use to it", hint=hint)
    write_state(path, now)


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    """State in RocksDB rather than in Java's heap, with small checkpoints, whatever the session says."""
    before = {name: spark.conf.get(name, None) for name in STATE_SETTINGS}
    for name, value in STATE_SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            spark.conf.unset(name) if earlier is None else spark.conf.set(name, earlier)


def stream_of(messages: DataFrame, spec: WindowSpec) -> DataFrame:
    """`windowed`, with what is counted on the way."""
    from pyspark.sql import functions as f

    events = events_of(messages, spec).observe(
        "events",
        f.count("*").alias("messages"),
        f.count_if(~f.col(WANTED)).alias("unwanted"),
        f.count_if(f.col(WANTED) & f.col(EVENT_AT).isNull()).alias("untimed"),
    )
    return as_messages(windows(events, spec), spec).observe("windows", f.count("*").alias("windows"))


def group_of(spec: WindowSpec) -> str:
    """The consumer group that shows how far a stream is."""
    return f"window.{spec.sink}"[: limits.name_length_max]


def _streamed(run: Run, spec: WindowSpec, options: WindowOptions) -> Report:
    reader = run.spark.readStream.format("penstock").option("url", run.url).option("group", group_of(spec))
    if run.since is not None:
        reader = reader.option("startingTime", run.since.isoformat())
    if options.messages_max is not None:
        reader = reader.option("maxMessagesPerTrigger", str(options.messages_max))
    frame = stream_of(reader.load(spec.source), spec)
    checkpoint = (run.out / "checkpoint").absolute()
    writer = stream_to(frame, run.url, spec.sink, checkpoint=checkpoint, mode=spec.mode)
    writer = writer.queryName(f"window {spec.source} to {spec.sink}")
    if options.available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(options.trigger_seconds * 1000)} milliseconds")
    return _report(run, spec, _watched(run, writer.start()))


def _watched(run: Run, query: StreamingQuery) -> Counted:
    """Follow a query to its end, or to Ctrl-C."""
    from pyspark.errors import StreamingQueryException

    counted = Counted()
    try:
        while not query.awaitTermination(LOOK_SECONDS):
            counted.look(query)
            figures = counted.figures
            run.progress.step(f"{figures['messages']:,} messages, {figures['windows']:,} windows")
    except KeyboardInterrupt:
        # How a stream ends.
        pass
    except StreamingQueryException as error:
        raise cause(error) or error from None
    finally:
        counted.look(query)
        query.stop()
    return counted


def _report(run: Run, spec: WindowSpec, counted: Counted) -> Report:
    figures = counted.figures
    notes = [f"it goes on from {run.out} when it is run again"]
    if spec.mode == "append" and counted.watermark:
        notes.append(f"windows that end after {counted.watermark} are still open")
    if figures["late"]:
        notes.append(f"{figures['late']:,} came too late for their window and were dropped: allow more lateness?")
    if figures["untimed"]:
        notes.append(f"{figures['untimed']:,} messages have no time in {spec.event_time!r} and are in no window")
    came = f"{plural(figures['messages'], 'message')} of {spec.source} became"
    has_news = figures["messages"] or figures["windows"]
    return Report(
        summary=(
            f"{came} {plural(figures['windows'], 'window')} in {spec.sink}"
            if has_news
            else f"nothing new in {spec.source}"
        ),
        figures={**figures, "watermark": counted.watermark},
        files=[str(run.out / FILE)],
        notes=notes,
    )


def _preview(run: Run, spec: WindowSpec, count: int) -> Report:
    found = windows(events_of(run.messages(queues=[spec.source]), spec), spec)
    rows = as_messages(found.orderBy("window_start", *(f"`{name}`" for name in spec.keys)), spec).limit(count).collect()
    shown = [msgspec.json.decode(row.payload) for row in rows]
    table = Table("Windows", tuple(found.columns), [tuple(each.values()) for each in shown])
    return Report(
        summary=f"{len(shown)} windows of {spec.source}; nothing was pushed",
        figures={"windows": len(shown)},
        tables=[table] if shown else [],
    )


PIPELINE: Final = Pipeline(
    name="window",
    summary="Tumbling, sliding and session windows over event time, from one queue to another.",
    explanation=(
        "A spec in TOML or Python says what to read, by which fields to group, how to cut time and what to compute. "
        "Runs as a stream: a window becomes one message of the sink, JSON with its start, end, keys and figures, when "
        "the watermark (the latest event time less the lateness) has passed its end; in mode update whenever it "
        "changes. Events that come later are dropped and counted. Each window is pushed exactly once, also when the "
        "run is killed: the checkpoint in the directory of the run (--out) knows what was done.\n\n"
        "--available-now takes what is there and stops; run it again to go on. --preview 20 shows windows over history "
        "and pushes nothing: a good way to write a spec."
    ),
    options=WindowOptions,
    run=run,
    check=check,
)
