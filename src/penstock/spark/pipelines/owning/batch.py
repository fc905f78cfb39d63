"""A pipeline of your own, as batches: everything since the last run, exactly once.

The state is written before the sink is touched: which offsets this run takes, and the id under which the sink will know
it. A run that was killed is done again with the same offsets and the same id, and a sink that has it already takes it
for done. Offsets are those of one life of a queue: one that was deleted and made anew is read from its beginning.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.errors import InvalidField
from penstock.history import QueueView, open_history
from penstock.spark import ranges
from penstock.spark.pipelines.base import Report, Run
from penstock.spark.pipelines.state import read_state, write_state
from penstock.units import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.pipelines.own import OwnPipeline

FILE: Final = "state.json"


class Place(msgspec.Struct, frozen=True):
    """Where a reader of a queue stands: the next offset of each partition."""

    incarnation: int
    offsets: dict[str, int]


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A run: from where to where, and whether it is over."""

    id: str
    run: int
    url: str
    begin: dict[str, Place]
    end: dict[str, Place]
    since: int | None = None  # µs: messages before are passed over
    is_done: bool = False

    @property
    def messages(self) -> int:
        """How many messages there are between the two."""
        return sum(
            end - self.begin[queue].offsets[partition]
            for queue, place in self.end.items()
            for partition, end in place.offsets.items()
        )

    @property
    def job(self) -> str:
        """What the sink knows this run by."""
        return f"{self.id}-{self.run}"


def run_batch(own: OwnPipeline, run: Run) -> Report:
    """Take what has come since the last run through the function and into the sink."""
    path = run.out / FILE
    state = following(read_state(path, State), run, seen(run.url, own.between.sources))
    sources = ", ".join(own.between.sources)
    if not state.messages:
        return Report(summary=f"nothing new in {sources}", figures=figures(state, 0))
    write_state(path, state)
    run.progress.step(f"{plural(state.messages, 'message')} of {sources} to {own.between.sink}")
    pushed = _write(own.applied(_read(own, run, state)), own, run, state)
    write_state(path, msgspec.structs.replace(state, is_done=True))
    return Report(
        summary=f"{plural(state.messages, 'message')} of {sources} became {pushed:,} in {own.between.sink}",
        figures=figures(state, pushed),
    )


def following(last: State | None, run: Run, queues: Mapping[str, QueueView]) -> State:
    """What this run takes: what the last one left undone, or else all that has come since."""
    if last is None:
        begin = {name: _start(view) for name, view in queues.items()}
        since = None if run.since is None else round(run.since.timestamp() * 1_000_000)
        return State(id=secrets.token_hex(8), run=0, url=run.url, begin=begin, end=_ends(queues), since=since)
    if last.url != run.url:
        hint = "give another directory with --out for another source"
        raise InvalidField(f"{run.out} has the state of a pipeline that reads {last.url}, not {run.url}", hint=hint)
    if not last.is_done:
        return last
    begin = {name: _after(last.end.get(name), view) for name, view in queues.items()}
    return State(id=last.id, run=last.run + 1, url=last.url, begin=begin, end=_ends(queues))


def seen(url: str, sources: Sequence[str]) -> dict[str, QueueView]:
    """The queues that a source names, as they are now."""
    history = open_history(url)
    try:
        return {view.name: view for view in ranges.chosen(history.look(), sources)}
    finally:
        history.close()


def figures(state: State, pushed: int) -> dict[str, int]:
    """The figures of a run."""
    return {"run": state.run, "messages": state.messages, "pushed": pushed}


def offsets(places: Mapping[str, Place]) -> str:
    """Offsets as the source takes them."""
    return msgspec.json.encode({name: place.offsets for name, place in places.items() if place.offsets}).decode()


def _start(view: QueueView) -> Place:
    return Place(view.incarnation, {name: each.start for name, each in view.partitions.items()})


def _after(last: Place | None, view: QueueView) -> Place:
    start = _start(view)
    if last is None or last.incarnation != view.incarnation:
        return start
    return Place(view.incarnation, {**start.offsets, **last.offsets})


def _ends(queues: Mapping[str, QueueView]) -> dict[str, Place]:
    return {
        name: Place(view.incarnation, {each: partition.end for each, partition in view.partitions.items()})
        for name, view in queues.items()
    }


def _read(own: OwnPipeline, run: Run, state: State) -> DataFrame:
    reader = run.spark.read.format("penstock").options(**own.between.reading(run.url))
    reader = reader.option("startingOffsets", offsets(state.begin)).option("endingOffsets", offsets(state.end))
    if state.since is not None:
        reader = reader.option("startingTime", _instant(state.since))
    if not run.options.fail_on_data_loss:
        reader = reader.option("failOnDataLoss", "false")
    return reader.load(",".join(state.end))


def _instant(at_us: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)).isoformat()


def _write(frame: DataFrame, own: OwnPipeline, run: Run, state: State) -> int:
    """Push the rows; how many there were."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    counted = Observation()
    observed = frame.observe(counted, f.count(f.lit(1)).alias("rows"))
    writer = observed.write.format("penstock").mode("append")
    writer.option("url", run.url).option("jobId", state.job).save(own.between.sink)
    return int(counted.get.get("rows", 0))
