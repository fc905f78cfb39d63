"""Pipelines of your own: a function from DataFrame to DataFrame, between two queues.

    @penstock.pipeline(source="orders", sink="orders.enriched")
    def enrich(orders: DataFrame) -> DataFrame: …

The function stays what it was, and can be called and tested as it is. `penstock pipeline run module:enrich` reads what
came to the source since the last run and writes what the function returns to the sink, exactly once; with `--stream` it
does so as messages come.

In batches, the state is written before the sink is touched: which offsets this run takes, and the job id under which
the sink knows it. A run that was killed is repeated with the same offsets and the same id, and a sink that has it
already ignores it. Offsets belong to one incarnation of a queue: one that was deleted and created again is read from
its beginning. A stream keeps its offsets in Spark's checkpoint, and the sink knows the last micro-batch it took.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import secrets
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from penstock.errors import InvalidField, PenstockError
from penstock.history import QueueView, open_history
from penstock.model import check_name, to_datetime
from penstock.refusals import suggestion
from penstock.spark import functions as f
from penstock.spark import ranges
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run
from penstock.spark.pipelines.state import read_state, write_state
from penstock.spark.pipelines.streams import follow, start_stream, stream_reader
from penstock.units import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Payload = Literal["binary", "string", "json", "none"]
OutputMode = Literal["append", "update", "complete"]
_NOT_IN_NAMES: Final = re.compile(r"[^\w.-]+", re.ASCII)
EXAMPLE: Final = "such as mymodule:enrich, for enrich in mymodule.py"


class CustomOptions(Options, frozen=True):
    """Options of a pipeline of your own."""

    stream: Annotated[bool, Meta(description="Keep processing new messages in micro-batches, until Ctrl-C.")] = False
    available_now: Annotated[bool, Meta(description="With --stream: process the existing messages, then stop.")] = False
    trigger_seconds: Annotated[
        float, Meta(description="With --stream: the interval of micro-batches; 0 for none.", ge=0)
    ] = 1.0
    messages_max: (
        Annotated[int, Meta(description="With --stream: the maximum number of messages per micro-batch.", ge=1)] | None
    ) = None
    checkpoint: Annotated[
        str | None, Meta(description="With --stream: the checkpoint directory; by default 'checkpoint' in --out.")
    ] = None
    fail_on_data_loss: Annotated[
        bool, Meta(description="Fail if retention has removed messages that were not read yet; otherwise skip them.")
    ] = True


class Between(msgspec.Struct, frozen=True, kw_only=True):
    """The two queues, and how the first is read."""

    sources: tuple[str, ...]  # names and patterns
    sink: str
    payload: Payload = "binary"
    payload_schema: str | None = None
    columns: tuple[str, ...] | None = None
    output_mode: OutputMode = "append"

    def reading(self, url: str, options: CustomOptions) -> dict[str, str]:
        """Options of the source."""
        reading = {"url": url, "payload": self.payload}
        if self.payload_schema is not None:
            reading["payloadSchema"] = self.payload_schema
        if self.columns is not None:
            reading["columns"] = ",".join(self.columns)
        if not options.fail_on_data_loss:
            reading["failOnDataLoss"] = "false"
        return reading


class CustomPipeline:
    """A function that is a pipeline too."""

    def __init__(self, function: Callable[[DataFrame], DataFrame], between: Between) -> None:
        self.function = function
        self.between = between
        functools.update_wrapper(self, function)

    def __call__(self, frame: DataFrame) -> DataFrame:
        return self.function(frame)

    @property
    def name(self) -> str:
        """How it is named on a command line."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline for `penstock pipeline run`."""
        sources = ", ".join(self.between.sources)
        about = " ".join((self.function.__doc__ or "").split())
        explanation = (
            f"Reads the messages that {sources} received since the last run, passes them through {self.name}, and "
            f"pushes the result to {self.between.sink}, exactly once. With --stream it keeps processing new messages."
        )
        summary = f"From {sources} to {self.between.sink}."
        return Pipeline(self.name, summary, f"{about}\n\n{explanation}".strip(), CustomOptions, self._run)

    def _run(self, run: Run) -> Report:
        if run.queues or run.until is not None:
            which = "--queue" if run.queues else "--until"
            hint = "the decorator names its source, and a run processes everything since the last run"
            raise InvalidField(f"{which}: a pipeline of your own does not accept it", hint=hint)
        return run_stream(self, run) if run.options.stream else run_batch(self, run)

    def applied(self, frame: DataFrame) -> DataFrame:
        """The result of the function for a frame; `InvalidField` when it is no DataFrame, or the function raises."""
        from pyspark.sql import DataFrame

        result = self._called(frame)
        if not isinstance(result, DataFrame):
            hint = "it must return the DataFrame with the rows to push"
            raise InvalidField(f"{self.name} returned {type(result).__name__}, not a DataFrame", hint=hint)
        return result

    def _called(self, frame: DataFrame) -> Any:
        try:
            return self.function(frame)
        except Exception as error:
            # What Spark or we raise says what is wrong; anything else only the author can know.
            if isinstance(error, PenstockError) or type(error).__module__.startswith("pyspark."):
                raise
            code = self.function.__code__
            lines = [
                line.lineno for line in traceback.extract_tb(error.__traceback__) if line.filename == code.co_filename
            ]
            where = f"line {lines[-1]} of {os.path.basename(code.co_filename)}" if lines else self.name
            raise InvalidField(f"{self.name} failed: {type(error).__name__}: {error}", hint=f"see {where}") from error


def pipeline(
    *,
    source: str | Sequence[str],
    sink: str,
    payload: Payload = "binary",
    payload_schema: str | None = None,
    columns: Sequence[str] | None = None,
    output_mode: OutputMode = "append",
) -> Callable[[Callable[[DataFrame], DataFrame]], CustomPipeline]:
    """Turn a function from DataFrame to DataFrame into a pipeline from one or more queues to another.

    `source` is a name, a pattern such as `orders.*`, or several of them. `payload`, `payload_schema` and `columns` are
    options of the source (docs/spark.md); `output_mode` is Spark's, for streams.
    """
    sources = (source,) if isinstance(source, str) else tuple(source)
    if not sources:
        raise InvalidField("source: names no queue")
    check_name(sink)
    if any(fnmatchcase(sink, pattern) for pattern in sources):
        raise InvalidField(f"sink: {sink} is also a source", hint="the pipeline would read its own output endlessly")
    chosen = None if columns is None else tuple(columns)
    between = Between(
        sources=sources,
        sink=sink,
        payload=payload,
        payload_schema=payload_schema,
        columns=chosen,
        output_mode=output_mode,
    )
    return lambda function: CustomPipeline(function, between)


def load(name: str) -> CustomPipeline:
    """The pipeline that `module:function` names; modules are looked for in the current directory first."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InvalidField(f"pipeline: {name!r} is not module:function", hint=EXAMPLE)
    module = _module(module_name)
    loaded = getattr(module, attribute, None)
    if isinstance(loaded, CustomPipeline):
        return loaded
    others = tuple(other for other, value in vars(module).items() if isinstance(value, CustomPipeline))
    if loaded is not None:
        raise InvalidField(
            f"pipeline: {name} is not a pipeline", hint="decorate it with @penstock.pipeline(source=…, sink=…)"
        )
    hint = suggestion(attribute, others) if others else "decorate a function with @penstock.pipeline(source=…, sink=…)"
    raise InvalidField(f"pipeline: {module_name} has no {attribute!r}", hint=hint)


def _module(name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f"run this in the directory of {name.partition('.')[0]}, or install it; {EXAMPLE}"
            raise InvalidField(f"pipeline: there is no module {name!r}", hint=hint) from None
        raise InvalidField(f"pipeline: {name} needs {error.name!r}, which is not installed") from None
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        raise InvalidField(f"pipeline: {name} cannot be imported: {type(error).__name__}: {error}") from None


FILE: Final = "state.json"


class QueuePosition(msgspec.Struct, frozen=True):
    """How far a queue was read: the next offset of each partition."""

    incarnation: int
    offsets: dict[str, int]


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A run: from where to where, and whether it is over."""

    id: str
    run: int
    url: str
    begin: dict[str, QueuePosition]
    end: dict[str, QueuePosition]
    since: int | None = None  # µs: messages before are passed over
    is_done: bool = False

    @property
    def messages(self) -> int:
        """How many messages there are between the two."""
        return sum(
            end - self.begin[queue].offsets[partition]
            for queue, position in self.end.items()
            for partition, end in position.offsets.items()
        )

    @property
    def job(self) -> str:
        """The job id under which the sink knows this run."""
        return f"{self.id}-{self.run}"


def run_batch(pipeline: CustomPipeline, run: Run) -> Report:
    """Push the results for what has come since the last run."""
    path = run.out / FILE
    state = following(read_state(path, State), run, queues_now(run.url, pipeline.between.sources))
    sources = ", ".join(pipeline.between.sources)
    if not state.messages:
        return Report(summary=f"nothing new in {sources}", figures=figures(state, 0))
    write_state(path, state)
    run.progress.step(f"{plural(state.messages, 'message')} of {sources} to {pipeline.between.sink}")
    pushed = _write(pipeline.applied(_read(pipeline, run, state)), pipeline, run, state)
    write_state(path, msgspec.structs.replace(state, is_done=True))
    return Report(
        summary=f"{plural(state.messages, 'message')} of {sources} became {pushed:,} in {pipeline.between.sink}",
        figures=figures(state, pushed),
    )


def following(last: State | None, run: Run, queues: Mapping[str, QueueView]) -> State:
    """What this run takes: what the last one did not finish, or else all that has come since."""
    if last is None:
        begin = {name: _start(view) for name, view in queues.items()}
        since = None if run.since is None else round(run.since.timestamp() * 1_000_000)
        return State(id=secrets.token_hex(8), run=0, url=run.url, begin=begin, end=_ends(queues), since=since)
    if last.url != run.url:
        hint = "use another directory for another source, with --out"
        raise InvalidField(f"{run.out} has the state of a pipeline that reads {last.url}, not {run.url}", hint=hint)
    if not last.is_done:
        return last
    begin = {name: _after(last.end.get(name), view) for name, view in queues.items()}
    return State(id=last.id, run=last.run + 1, url=last.url, begin=begin, end=_ends(queues))


def queues_now(url: str, sources: Sequence[str]) -> dict[str, QueueView]:
    """The queues that a source names, as they are now."""
    with closing(open_history(url)) as history:
        return {view.name: view for view in ranges.chosen(history.look(), sources)}


def figures(state: State, pushed: int) -> dict[str, int]:
    """The figures of a run."""
    return {"run": state.run, "messages": state.messages, "pushed": pushed}


def offsets(positions: Mapping[str, QueuePosition]) -> str:
    """Offsets as the source takes them."""
    return msgspec.json.encode(
        {name: position.offsets for name, position in positions.items() if position.offsets}
    ).decode()


def _start(view: QueueView) -> QueuePosition:
    return QueuePosition(view.incarnation, {name: partition.start for name, partition in view.partitions.items()})


def _after(last: QueuePosition | None, view: QueueView) -> QueuePosition:
    start = _start(view)
    if last is None or last.incarnation != view.incarnation:
        return start
    return QueuePosition(view.incarnation, {**start.offsets, **last.offsets})


def _ends(queues: Mapping[str, QueueView]) -> dict[str, QueuePosition]:
    return {
        queue: QueuePosition(view.incarnation, {name: partition.end for name, partition in view.partitions.items()})
        for queue, view in queues.items()
    }


def _read(pipeline: CustomPipeline, run: Run, state: State) -> DataFrame:
    reader = run.spark.read.format("penstock").options(**pipeline.between.reading(run.url, run.options))
    reader = reader.option("startingOffsets", offsets(state.begin)).option("endingOffsets", offsets(state.end))
    if state.since is not None:
        reader = reader.option("startingTime", to_datetime(state.since).isoformat())
    return reader.load(",".join(state.end))


def _write(frame: DataFrame, pipeline: CustomPipeline, run: Run, state: State) -> int:
    """Push the rows; how many there were."""
    from pyspark.sql import Observation

    counted = Observation()
    observed = frame.observe(counted, f.count(f.lit(1)).alias("rows"))
    writer = observed.write.format("penstock").mode("append")
    writer.option("url", run.url).option("jobId", state.job).save(pipeline.between.sink)
    return int(counted.get.get("rows", 0))


def run_stream(pipeline: CustomPipeline, run: Run) -> Report:
    """Push results as messages come, until Ctrl-C, or with `available_now` until nothing is left."""
    options: CustomOptions = run.options
    between = pipeline.between
    checkpoint = Path(options.checkpoint or run.out / "checkpoint").absolute()
    reader = stream_reader(run, _NOT_IN_NAMES.sub(".", pipeline.name).strip("."))
    reader = reader.options(**between.reading(run.url, options))
    frame = pipeline.applied(reader.load(",".join(between.sources)))
    query = start_stream(run, frame, between.sink, name=pipeline.name, mode=between.output_mode, checkpoint=checkpoint)
    rows: dict[int, int] = {}  # by micro-batch

    def on_batch(progress: Mapping[str, Any]) -> None:
        if progress["numInputRows"]:
            rows[progress["batchId"]] = progress["numInputRows"]

    def shown() -> str:
        return f"{plural(sum(rows.values()), 'message')} of {', '.join(between.sources)} to {between.sink}"

    follow(run, query, on_batch, shown)
    return Report(
        summary=f"{shown()}, in {plural(len(rows), 'micro-batch', 'micro-batches')}",
        figures={"messages": sum(rows.values()), "batches": len(rows)},
        notes=[f"the next run continues from {checkpoint}"],
    )
