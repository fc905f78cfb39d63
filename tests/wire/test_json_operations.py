"""The JSON of operations, derived from their declarations."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from penstock import operations as ops
from penstock.errors import InputError
from penstock.model import MessageId, PartitionLag
from penstock.model_letters import LetterFilter
from penstock.replies import LeaseView, Membership
from penstock.server.http.openapi import PARAMETERS
from penstock.server.http.routes import API, CUSTOM, ROUTES
from penstock.wire.json_operations import json_of
from penstock.wire.json_reader import Reader

AT = datetime(2030, 1, 31, 12, tzinfo=UTC)
OFFERED = [operation for operation in ops.TABLE.values() if operation.spec.method]
DERIVED = [operation for operation in OFFERED if operation not in CUSTOM]


def written(operation: ops.Operation[Any], result: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(json_of(type(operation)).reply.write(operation, result)))


def test_every_operation_with_a_path_has_a_route_that_is_called_as_it_says():
    routes = {route.name: (route.method, route.path) for route in ROUTES}

    for operation in OFFERED:
        spec = operation.spec
        assert routes[spec.route] == (spec.method, API + spec.path)


@pytest.mark.parametrize("operation", DERIVED, ids=lambda operation: operation.spec.name)
def test_an_operation_is_made_of_its_path_and_its_example(operation):
    json, spec = json_of(operation), operation.spec
    path = {name: PARAMETERS[name][2] for name in re.findall(r"{(\w+)}", spec.path)}
    arguments = None if json.query is None else msgspec.convert(spec.example, json.query, strict=False)
    if json.body is not None:
        arguments = Reader(json.body).read(msgspec.json.encode(spec.example))

    assert isinstance(json.read(path, arguments), operation)


@pytest.mark.parametrize("operation", [each for each in DERIVED if json_of(each).body], ids=lambda each: each.spec.name)
def test_a_field_that_is_not_known_is_refused_by_every_body(operation):
    with pytest.raises(InputError, match="unheard_of: there is no such field"):
        Reader(json_of(operation).body).read(msgspec.json.encode({**operation.spec.example, "unheard_of": 1}))


def test_durations_are_seconds_in_python_and_milliseconds_in_json():
    join = json_of(ops.Join)
    body = Reader(join.body).read(b'{"member": "m", "session_ms": 2500}')
    shown = written(ops.Join("q", "g", "m"), Membership("m", 1, ["0"], [], 0.8333333))

    assert join.read({"queue": "q", "group": "g"}, body) == ops.Join("q", "g", "m", session_seconds=2.5)
    assert (shown["heartbeat_ms"], "heartbeat_seconds" in shown) == (833.333, False)


def test_what_is_left_out_has_the_default_of_the_operation():
    path = {"queue": "q", "group": "g"}

    assert json_of(ops.Join).read(path, Reader(json_of(ops.Join).body).read(b'{"member": "m"}')) == ops.Join(
        "q", "g", "m"
    )
    assert json_of(ops.Peek).read({"queue": "q"}, json_of(ops.Peek).query()) == ops.Peek("q")


def test_an_id_comes_from_its_parts_in_the_path():
    path = {"queue": "q", "partition": "eu", "offset": "7"}

    assert json_of(ops.Cancel).read(path, None) == ops.Cancel(MessageId("q", "eu", 7))


def test_a_struct_among_the_arguments_has_no_object_of_its_own():
    redrive = json_of(ops.RedriveLetters)
    body = Reader(redrive.body).read(b'{"reason": "rejected", "ids": ["q.dlq/0/3"], "since": "2030-01-31T12:00:00Z"}')
    filter = LetterFilter(reason="rejected", ids=frozenset({MessageId("q.dlq", "0", 3)}), since=AT)

    assert redrive.read({"queue": "q"}, body) == ops.RedriveLetters("q", filter)


def test_a_result_that_is_no_object_has_the_name_that_is_declared():
    lease = LeaseView("6f2a90c44d1be803", "default", "w-1", AT, AT, 2, ["0"])

    assert written(ops.Leases("q"), [lease]) == {
        "leases": [
            {**msgspec.to_builtins(lease), "leased_at": "2030-01-31T12:00:00Z", "expires_at": "2030-01-31T12:00:00Z"}
        ]
    }


def test_a_tuple_with_names_is_an_object():
    groups = written(ops.Groups("q"), {"default": [PartitionLag("0", 0, 1, 3, 2)]})["groups"]

    assert groups == [
        {
            "name": "default",
            "partitions": [{"partition": "0", "start_offset": 0, "committed_offset": 1, "end_offset": 3, "lag": 2}],
        }
    ]
