"""Pipelines of your own, as far as they go without Spark: what a run takes, what is refused, how errors read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import penstock
from penstock.cli.spark_session import python_error
from penstock.errors import InvalidField
from penstock.history import PartitionView, QueueView
from penstock.model import QueueOptions
from penstock.spark.failures import query_error
from penstock.spark.pipelines.custom import following, offsets
from penstock.spark.pipelines.runner import find

RUN: Any = SimpleNamespace(url="data", since=None, out=Path("out"))

UNRESOLVED = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `totl` cannot be resolved. Did you mean one of \
the following? [`total`]. SQLSTATE: 42703; line 1 pos 7;
'Project ['totl]
+- SubqueryAlias orders

JVM stacktrace:
org.apache.spark.sql.AnalysisException"""
FAILED = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "orders.py", line 3, in fail
    raise ValueError("no customer")
ValueError: no customer

JVM stacktrace:
org.apache.spark.api.python.PythonException: Boom"""


def view(incarnation: int, **ends: int) -> QueueView:
    parts = {name: PartitionView(name, id, 2, end) for id, (name, end) in enumerate(ends.items())}
    return QueueView("orders", incarnation, QueueOptions(), parts, ())


def test_the_first_run_takes_what_is_kept_and_the_next_what_came_since():
    first = following(None, RUN, {"orders": view(1, a=5)})
    over = msgspec.structs.replace(first, is_done=True)
    second = following(over, RUN, {"orders": view(1, a=9, b=4)})

    assert (first.messages, offsets(first.begin), offsets(first.end)) == (3, '{"orders":{"a":2}}', '{"orders":{"a":5}}')
    assert (second.messages, offsets(second.begin)) == (4 + 2, '{"orders":{"a":5,"b":2}}')
    assert (second.id, second.run) == (first.id, 1)
    assert second.job != first.job


def test_a_run_that_did_not_end_is_done_again_as_it_was():
    first = following(None, RUN, {"orders": view(1, a=5)})

    assert following(first, RUN, {"orders": view(1, a=9)}) == first


def test_a_queue_that_was_created_again_is_read_from_its_beginning():
    over = msgspec.structs.replace(following(None, RUN, {"orders": view(1, a=50)}), is_done=True)

    assert following(over, RUN, {"orders": view(2, a=5)}).messages == 3


def test_a_state_of_another_place_is_refused():
    state = following(None, RUN, {"orders": view(1, a=5)})
    other: Any = SimpleNamespace(url="elsewhere", since=None, out=Path("out"))

    with pytest.raises(InvalidField, match="out has the state of a pipeline that reads data, not elsewhere"):
        following(state, other, {})


def test_a_pipeline_stays_a_function_and_does_not_read_its_own_sink():
    @penstock.pipeline(source=["orders", "mail.*"], sink="copies")
    def copied(frame):
        return [frame]

    called: Any = copied
    assert called("frame") == ["frame"]
    assert copied.pipeline.summary == "From orders, mail.* to copies."
    with pytest.raises(InvalidField, match=r"sink: mail\.all is also a source"):
        penstock.pipeline(source="mail.*", sink="mail.all")
    with pytest.raises(InvalidField, match="names no queue"):
        penstock.pipeline(source=[], sink="copies")


@pytest.mark.parametrize("name", ["orders:", ":big", "no.such.module:big"])
def test_what_names_no_function_is_refused(name):
    with pytest.raises(InvalidField, match="pipeline: "):
        find(name)


def test_errors_of_spark_are_one_sentence():
    assert query_error(UNRESOLVED) == (
        "A column with name `totl` cannot be resolved. Did you mean one of the following? [`total`]. line 1 pos 7"
    )
    assert python_error(FAILED) == "ValueError: no customer"
    assert python_error("no Python here") == ""
