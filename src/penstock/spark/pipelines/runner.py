"""Finding a pipeline by name, and running it: its lock, its tables, and the record of the run.

Pipelines that ship with Penstock have a name; custom ones are `module:function`. A module is imported when its
pipeline is asked for, and none of them imports Spark before it runs, so listing and explaining pipelines needs no Java.
A run reads tables through the Spark session that it was given and starts none. What it reads ends where the log was
durable when the table was planned.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidField, PenstockError
from penstock.model import to_datetime
from penstock.refusals import suggestion
from penstock.spark.failures import cause, query_error
from penstock.spark.pipelines.base import Pipeline, Report, Run
from penstock.spark.pipelines.state import Record, keep, locked, records

if TYPE_CHECKING:
    pass


# Where each lives, in the order in which they are listed.
MODULES: Final = {
    "archive": "archive",
    "rollup": "rollup",
    "traces": "traces",
    "dlq-triage": "triage",
    "replay": "replay",
    "window": "window",
    "backtest": "backtest",
    "forecast": "forecast",
}
_HOME: Final = "penstock.spark.pipelines"


def names() -> tuple[str, ...]:
    """The names of the pipelines that ship with Penstock."""
    return tuple(MODULES)


def shipped() -> list[Pipeline]:
    """The pipelines themselves."""
    return [find(name) for name in names()]


def find(name: str) -> Pipeline:
    """The pipeline of this name."""
    if ":" in name:
        from penstock.spark.pipelines.custom import load

        return load(name).pipeline
    if name not in names():
        hint = f"a function of your own is named module:function; {suggestion(name, names())}"
        raise InvalidField(f"pipeline: there is no pipeline {name!r}", hint=hint)
    pipeline: Pipeline = importlib.import_module(f"{_HOME}.{MODULES[name]}").PIPELINE
    return pipeline


def execute(pipeline: Pipeline, run: Run, *, clock: Clock | None = None) -> Report:
    """Run a pipeline in its directory, alone, and record the run."""
    clock = clock or SystemClock()
    begun = clock.now()
    pipeline.check(run)
    with locked(run.out):
        _refuse_others(pipeline, run.out)
        try:
            report = pipeline.run(run)
        except BaseException as error:
            keep(run.out, _record(pipeline, run, clock, begun, error=_reason(error)))
            raise
        keep(run.out, _record(pipeline, run, clock, begun, report=report))
    return report


def _refuse_others(pipeline: Pipeline, out: Path) -> None:
    """Refuse a directory that has the files and records of another pipeline."""
    earlier: list[Record] = []
    with suppress(InvalidField):  # a record that cannot be read is no reason to fail
        earlier = records(out)
    others = [record.pipeline for record in earlier if record.report is not None and record.pipeline != pipeline.name]
    if others:
        hint = f"use a separate directory for {pipeline.name}"
        raise InvalidField(f"out: {out} contains files of the pipeline {others[-1]}", hint=hint)


def default_out(name: str) -> Path:
    """The default directory for the files of a pipeline."""
    return Path("pipelines") / name.replace(":", ".")


def _record(pipeline: Pipeline, run: Run, clock: Clock, begun: int, **came: Any) -> Record:
    changed = {
        field.name: getattr(run.options, field.name)
        for field in msgspec.structs.fields(run.options)
        if getattr(run.options, field.name) != field.default
    }
    return Record(
        pipeline=pipeline.name,
        url=run.url,
        queues=run.queues,
        since=run.since,
        until=run.until,
        options=changed,
        started_at=to_datetime(begun),
        seconds=(clock.now() - begun) / 1e6,
        **came,
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, PenstockError):
        return error.message
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    ours = cause(error)
    return ours.message if ours is not None else f"{type(error).__name__}: {query_error(str(error))}"
