"""Operations on runs of pipelines. The process that runs a pipeline reports its runs; others can look them up."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from penstock import limits
from penstock.errors import InvalidField, shown
from penstock.model import check_name
from penstock.operations.base import Action, Check, Operation, operation
from penstock.operations.types import Instant
from penstock.replies import PipelineRun, PipelineView

STATES = ("running", "done", "failed")


def _state(value: Any, field: str) -> str:
    if value not in STATES:
        raise InvalidField(f"{field}: {shown(value)} is not the state of a run", hint=f"use one of {', '.join(STATES)}")
    return str(value)


def _pipeline(value: Any, field: str) -> str:
    """The name of a pipeline. The name of a user's own function contains a colon."""
    for part in value.split(":", 1) if isinstance(value, str) else (value,):
        check_name(part, field)
    return str(value)


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or len(value) > limits.pipeline_text_characters_max:
        raise InvalidField(f"{field}: not text of up to {limits.pipeline_text_characters_max:,} characters")
    return value


def _report(value: Any, field: str) -> str:
    if not isinstance(value, str) or len(value.encode(errors="surrogatepass")) > limits.pipeline_report_bytes_max:
        raise InvalidField(f"{field}: not text of up to {limits.pipeline_report_bytes_max:,} bytes")
    return value


def _rows(value: Any, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise InvalidField(f"{field}: {shown(value)} is not a number of rows")
    return value


def _queues(value: Any, field: str) -> tuple[str, ...]:
    names = tuple(value)
    if len(names) > limits.pipelines_max or not all(isinstance(name, str) and len(name) <= 255 for name in names):
        raise InvalidField(f"{field}: not a list of up to {limits.pipelines_max} names")
    return names


PipelineName = Annotated[str, Check(_pipeline)]
RunName = Annotated[str, Check(check_name)]
RunState = Annotated[Literal["running", "done", "failed"], Check(_state)]
Text = Annotated[str, Check(_text)]


@operation(Action.MONITOR, http="GET /pipelines", route="list_pipelines", reply="pipelines")
class Pipelines(Operation[list[PipelineView]], frozen=True):
    """List the pipelines with reported runs, and the last runs of each, newest first."""


@operation(Action.MONITOR, http="GET /pipelines/{name}/runs/{run}", errors=("run_not_found", "invalid_name"))
class GetPipelineRun(Operation[PipelineRun], frozen=True):
    """Get one run of a pipeline."""

    name: PipelineName
    run: RunName


@operation(
    Action.OPERATE,
    http="PUT /pipelines/{name}/runs/{run}",
    errors=("invalid_field", "invalid_name", "queue_full", "disk_full"),
    example={"status": "done", "rows": 8112, "queues": ["orders"], "summary": "8,112 messages of 2 queues"},
)
class PutPipelineRun(Operation[PipelineRun], frozen=True):
    """Report that a run of a pipeline has started or ended.

    The last 20 runs of a pipeline are kept, and up to 8 MiB of the newest reports. `report` is HTML of up to 512 KiB.
    If it is omitted, the run keeps its current report.
    """

    name: PipelineName
    run: RunName
    state: RunState
    started_at: Instant | None = None
    ended_at: Instant | None = None
    rows: Annotated[int, Check(_rows)] | None = None
    error: Text = ""
    queues_read: Annotated[tuple[str, ...], Check(_queues)] = ()
    summary: Text = ""
    report: Annotated[str, Check(_report)] | None = None


@operation(Action.MONITOR, errors=("run_not_found", "invalid_name"))
class GetPipelineReport(Operation[str], frozen=True):
    """Get the report of a run of a pipeline, as HTML."""

    name: PipelineName
    run: RunName
