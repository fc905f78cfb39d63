"""Runs of pipelines at a broker: one that reads from it reports itself there; `penstock pipeline runs` lists them.

A run is worth more than its report: a broker that cannot be reached, or where one may not report, costs a warning.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from penstock import limits
from penstock.cli import human, output
from penstock.cli.options import AsJson
from penstock.cli.target import Broker
from penstock.errors import PenstockError
from penstock.model import is_store_url

if TYPE_CHECKING:
    from penstock.replies import PipelineRun
    from penstock.spark.pipelines.base import Report, Run


@contextmanager
def reported(broker: Broker, pipeline: str, run: Run) -> Iterator[Callable[[Report], None]]:
    """Report a run to the broker that it reads from, at its beginning and its end; it yields what takes its report."""
    if broker.is_directory or is_store_url(broker.address):
        yield lambda report: None
        return
    began = datetime.now(UTC)
    about: dict[str, Any] = {
        "name": pipeline,
        "run": f"{began:%Y%m%dT%H%M%S}-{secrets.token_hex(2)}",
        "started_at": began,
        "queues_read": run.queues[: limits.pipelines_max],
    }
    finished: list[Report] = []
    _tell(broker, {**about, "state": "running"})
    try:
        yield finished.append
    except BaseException as error:
        message = str(error) or type(error).__name__
        _tell(broker, {**about, "state": "failed", "ended_at": datetime.now(UTC), "error": _cut(message)})
        raise
    for report in finished:
        done = {"state": "done", "ended_at": datetime.now(UTC), "summary": _cut(report.summary), "rows": _rows(report)}
        _tell(broker, {**about, **done, "report": _page(report)})


def _tell(broker: Broker, fields: dict[str, Any]) -> None:
    from penstock import operations as ops

    try:
        with broker.opened() as ps:
            ps.session.execute(ops.PutPipelineRun(**fields))
    except PenstockError as error:
        typer.echo(f"the run is not reported to the broker: {error.message}", err=True)


def _cut(text: str) -> str:
    return text[: limits.pipeline_text_characters_max]


def _rows(report: Report) -> int | None:
    """How many messages it read, as far as its figures say so."""
    found = (report.figures.get(name) for name in ("rows", "messages", "events", "tasks"))
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)


def _page(report: Report) -> str | None:
    """The first page that the run wrote, if it is not too large."""
    for name in report.files:
        path = Path(name)
        if path.suffix == ".html" and path.is_file() and path.stat().st_size <= limits.pipeline_report_bytes_max:
            return path.read_text(encoding="utf-8", errors="replace")
    return None


def runs(broker: Broker, as_json: AsJson = False) -> None:
    """List runs reported to a broker, newest first."""
    from penstock import operations as ops

    with broker.opened() as ps:
        pipelines = ps.session.execute(ops.Pipelines())
    if as_json:
        output.write_json(pipelines)
        return
    if not pipelines:
        output.write("[dim]no run was reported: 'penstock pipeline run' against a broker reports itself[/]")
        return
    for index, pipeline in enumerate(pipelines):
        if index:
            output.write("")
        output.write(f"[bold]{escape(pipeline.name)}[/]")
        headings = ("run", "status", "started", "took", "result")
        output.write(output.table(headings, list(map(_row, pipeline.runs)), text_columns=4, has_excerpt=True))


def _row(run: PipelineRun) -> tuple[Any, ...]:
    took = human.EMPTY
    if run.started_at is not None and run.ended_at is not None:
        took = human.duration((run.ended_at - run.started_at).total_seconds())
    return run.run, run.state, human.moment(run.started_at), took, run.error or run.summary or human.EMPTY
