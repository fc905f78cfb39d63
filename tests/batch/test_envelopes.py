"""Tasks as messages: one, many and many alike are the same messages."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from penstock.batch import Batch, encode_one_task, encode_one_with
from penstock.envelopes import (
    alike_batch,
    alike_payloads,
    encode_envelope,
    new_task_id,
    new_task_ids,
    parse_envelope,
    task_message,
    tasks_batch,
)
from penstock.errors import InvalidField, TooLarge
from penstock.limits import payload_bytes_max
from penstock.model import ContentType
from penstock.model_tasks import Envelope, TaskSubmission

NOW = 1_750_000_000_123_456
PLAIN = TaskSubmission(task_id=new_task_id(NOW), task_type="send", queue="mail", args=b'["x"]')
OPTIONS: list[dict[str, Any]] = [
    {},
    {"kwargs": b'{"a":1}', "args": b"[]"},
    {"key": "k", "priority": 3, "delay_seconds": 1.5, "ttl_seconds": 9.0, "max_attempts": 4},
    {"deliver_at": datetime(2030, 1, 1, tzinfo=UTC), "headers": {"a": "b"}, "trace": "t", "is_named": True},
    {"args": b'[{"penstock:bytes":3}]', "payload": b"\x00\xff}"},
    {"timeout_seconds": 3.0, "takes": "one", "depends_on": ("x",), "workflow": "w", "on_parent_failure": "run"},
]


def values(batch: Batch, row: int) -> list[Any]:
    """All that a message says."""
    columns = [batch.priority, batch.delay, batch.deliver_at, batch.ttl, batch.max_attempts]
    numbers = [None if column is None else int(column[row]) for column in columns]
    texts = [batch.key(row), batch.dedup_key(row), batch.trace(row), batch.headers(row), batch.content_type_of(row)]
    return [parse_envelope(batch.payload(row)), *numbers, *texts]


def test_ids_are_uuids_of_version_7_that_sort_by_time():
    ids = [new_task_id(NOW), *new_task_ids(300, NOW + 1000), new_task_id(NOW + 2000)]
    assert [str(uuid.UUID(id)) for id in ids] == ids
    assert {(uuid.UUID(id).version, uuid.UUID(id).variant) for id in ids} == {(7, uuid.RFC_4122)}
    assert ids[0] == min(ids)
    assert ids[-1] == max(ids)
    assert len(set(ids)) == 302
    assert {uuid.UUID(id).int >> 80 for id in ids[1:-1]} == {(NOW + 1000) // 1000}


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "plain")
def test_one_some_and_alike_make_the_same_messages(options):
    task = msgspec.structs.replace(PLAIN, **options)
    one, some = Batch(task_message(task)), tasks_batch([task, task])
    alike = alike_batch(task, alike_payloads(task, [(task.args, task.kwargs, task.payload)] * 2, [task.task_id] * 2))
    assert values(one, 0) == values(some, 1) == values(alike, 1)
    assert one.content_type_of(0) == ContentType.TASK
    assert encode_one_with(encode_envelope(PLAIN), content_type=ContentType.TASK) == task_message(PLAIN)


def test_a_payload_over_the_limit_is_refused():
    with pytest.raises(TooLarge):
        encode_one_task(bytes(payload_bytes_max + 1))


def test_an_envelope_comes_back_as_it_was():
    envelope = parse_envelope(encode_envelope(PLAIN))
    assert (envelope.task_id, envelope.task_type, bytes(envelope.args)) == (PLAIN.task_id, "send", b'["x"]')
    assert bytes(envelope.kwargs) == bytes(Envelope(task_id="", task_type="").kwargs) == b"{}"


@pytest.mark.parametrize("payload", [b"", b"hello", b"[]", b"{}", b'{"task_id":1,"task_type":"x"}'])
def test_what_is_no_task_is_refused(payload):
    with pytest.raises(InvalidField, match="payload: not a task"):
        parse_envelope(payload)
