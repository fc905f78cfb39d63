"""Runs of pipelines, as whoever runs them reports them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock import limits
from penstock import operations as ops
from penstock.errors import InvalidField, InvalidName, RunNotFound
from tests.behaviour.steps import refuse
from tests.behaviour.task_steps import Office
from tests.support.operations import run_operation

NOON = datetime(2025, 1, 31, 12, tzinfo=UTC)


def execute(ps, operation):
    return Office(ps).confirmed(run_operation(ps._session, operation))


def put(ps, run="r1", state="done", name="rollup", **fields):
    return execute(ps, ops.PutPipelineRun(name, run, state, **fields))


def test_a_run_begins_and_ends_and_its_report_can_be_read(ps, clock):
    begun = put(ps, state="running", queues_read=("orders",))
    assert (begun.state, begun.started_at.timestamp(), begun.has_report) == ("running", clock.now() / 1e6, False)
    clock.advance(5)

    done = put(ps, ended_at=NOON, rows=8, summary="8 messages", report="<p>eight</p>")

    assert (done.state, done.rows, done.summary, done.has_report) == ("done", 8, "8 messages", True)
    assert done.started_at == begun.started_at
    assert execute(ps, ops.GetPipelineRun("rollup", "r1")) == done
    assert execute(ps, ops.GetPipelineReport("rollup", "r1")) == "<p>eight</p>"
    assert put(ps, rows=9).has_report
    (pipeline,) = execute(ps, ops.Pipelines())
    assert (pipeline.name, [run.rows for run in pipeline.runs]) == ("rollup", [9])


def test_the_newest_runs_are_kept(ps):
    for number in range(limits.pipeline_runs_max + 3):
        put(ps, f"r{number}", started_at=NOON + timedelta(seconds=number))

    (pipeline,) = execute(ps, ops.Pipelines())

    assert [run.run for run in pipeline.runs[:2]] == ["r22", "r21"]
    assert len(pipeline.runs) == limits.pipeline_runs_max
    refuse(RunNotFound, lambda: execute(ps, ops.GetPipelineRun("rollup", "r0")), "r0")


def test_the_newest_reports_are_kept_and_the_runs_of_the_others_too(ps):
    page = "x" * limits.pipeline_report_bytes_max
    count = limits.pipeline_reports_bytes_max // limits.pipeline_report_bytes_max + 1
    for number in range(count):
        put(ps, f"r{number}", started_at=NOON + timedelta(seconds=number), report=page)

    (pipeline,) = execute(ps, ops.Pipelines())

    assert [run.has_report for run in pipeline.runs] == [True] * (count - 1) + [False]
    refuse(RunNotFound, lambda: execute(ps, ops.GetPipelineReport("rollup", "r0")), "no report")


def test_runs_are_there_after_a_crash(ps, way):
    if not way.lasts:
        return
    put(ps, report="<p>eight</p>", name="my.module:pipeline")

    again = way.crash()

    assert execute(again, ops.GetPipelineReport("my.module:pipeline", "r1")) == "<p>eight</p>"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"state": "resting"}, "state"),
        ({"rows": -1}, "rows"),
        ({"rows": True}, "rows"),
        ({"report": "x" * (limits.pipeline_report_bytes_max + 1)}, "report"),
        ({"error": "x" * (limits.pipeline_text_characters_max + 1)}, "error"),
        ({"queues_read": ["x"] * 1_000}, "queues_read"),
    ],
)
def test_a_bad_report_of_a_run_is_refused(ps, fields, word):
    with pytest.raises(InvalidField, match=word):
        put(ps, **fields)
    assert execute(ps, ops.Pipelines()) == []


@pytest.mark.parametrize(("name", "run"), [("../x", "r"), ("rollup", "a/b"), ("", "r"), ("a:b:c", "r"), ("x", "")])
def test_names_that_are_none_are_refused(name, run):
    with pytest.raises(InvalidName):
        ops.PutPipelineRun(name, run, "done")
