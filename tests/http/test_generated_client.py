"""A client that openapi-python-client makes of the OpenAPI document: it has every operation, and each of them works."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from penstock.server.http.openapi import PARAMETERS, document
from penstock.server.http.routes import ROUTES, Route
from penstock.wire.json_reader import OneOrMany
from tests.support.http import HttpThread

PACKAGE = "penstock_generated"
GENERATOR = str(Path(__file__).parent.parent.parent / ".venv" / "openapi" / "bin" / "python")  # made by `make setup`
VERBS = """
    ack begin cancel commit compact create delete erase explain extend finish forget get heartbeat join lease leave list
    nack pause peek purge push read redrive register reject release replace report resume retry revoke rewrap rotate
    count query seal search seek set snooze start stop submit sync update
    continue discard end quiet put replay run suggest take
"""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    where = tmp_path_factory.mktemp("generated")
    (where / "openapi.json").write_text(json.dumps(document(ROUTES)))
    (where / "settings.yml").write_text("post_hooks: []\n")
    words = f"generate --path openapi.json --output-path {PACKAGE} --meta none --config settings.yml --fail-on-warning"
    command = [GENERATOR, "-m", "openapi_python_client", *words.split()]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(where))
    yield importlib.import_module(PACKAGE)
    sys.path.remove(str(where))
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def client(generated: ModuleType, server: HttpThread) -> Iterator[Any]:
    with generated.Client(base_url=str(server.http.base_url), raise_on_unexpected_status=True) as made:
        yield made


def operations(generated: ModuleType) -> dict[str, ModuleType]:
    files = Path(str(generated.__file__)).parent.glob("api/*/*.py")
    return {
        file.stem: importlib.import_module(f"{PACKAGE}.api.{file.parent.name}.{file.stem}")
        for file in files
        if file.stem != "__init__"
    }


def arguments(generated: ModuleType, route: Route, called: Any) -> dict[str, Any]:
    """What the document has as an example, in the classes of the client."""
    given: dict[str, Any] = {name: PARAMETERS[name][2] for name in re.findall(r"{(\w+)}", route.path)}
    if route.body is not None:
        kind = route.body.kinds[0] if isinstance(route.body, OneOrMany) else route.body
        model = getattr(importlib.import_module(f"{PACKAGE}.models"), kind.__name__)
        given["body"] = model.from_dict(json.loads(json.dumps(route.example)))
    for name, parameter in inspect.signature(called).parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in given and name != "client":
            given[name] = of_kind(parameter.annotation, str(route.example[name]))
    return given


def of_kind(kind: Any, text: str) -> Any:
    """A query parameter as the client takes it: an instant, a choice or a text."""
    if kind is datetime:
        return datetime.fromisoformat(text)
    return kind(text)


def test_the_client_has_every_operation_by_a_name_that_can_be_read(generated):
    names = [route.name for route in ROUTES]

    assert sorted(operations(generated)) == sorted(names)
    assert [name for name in names if name.split("_")[0] not in VERBS.split() or len(name) > 24] == []


def test_every_operation_is_answered_as_the_document_says(generated, client):
    found = operations(generated)

    for route in ROUTES:
        call = found[route.name].sync_detailed
        answer = call(client=client, **arguments(generated, route, call))
        assert answer.status_code < 500 or route.name in {"seal_segments", "compact_segments"}, (route.name, answer)
        assert answer.parsed is not None or answer.status_code == 204, (route.name, answer)


def test_a_message_goes_its_way_through_the_client(generated, client):
    call, models = operations(generated), importlib.import_module(f"{PACKAGE}.models")

    call["create_queue"].sync(client=client, body=models.NewQueue(name="mail", lease_ms=30_000))
    pushed = call["push_messages"].sync(
        "mail", client=client, body=models.Push(messages=[models.NewMessage(payload={"to": "ann"}, key="ann")])
    )
    leased = call["lease_messages"].sync("mail", client=client, body=models.Lease(max_=1))
    (message,) = leased.messages
    settled = call["ack_messages"].sync(client=client, body=models.Ack(receipts=[message.receipt]))
    task = call["submit_tasks"].sync(client=client, body=models.NewTask(task_type="send", queue="mail", args=[1, "a"]))
    missing = call["get_queue"].sync("nowhere", client=client)

    assert pushed.results[0].id == "mail/0/0"
    assert message.payload == {"to": "ann"}
    assert isinstance(message.pushed_at, datetime)
    assert [result.status for result in settled.results] == ["ok"]
    assert call["get_task"].sync(task.tasks[0].task_id, client=client).args == [1, "a"]
    assert missing.error.code == "queue_not_found"


def test_every_array_has_items_and_every_instant_its_format():
    """Instants are found by their type here, and were by their name there."""
    found = document(ROUTES)
    wrong = [each for each in schemas(found) if each.get("type") == "array" and "items" not in each]
    assert wrong == []
    kinds = [kind for route in ROUTES for kind in (route.query, route.result, *bodies(route)) if kind is not None]
    for kind in msgspec.inspect.multi_type_info(kinds):
        check_instants(kind, found["components"]["schemas"], set())


def schemas(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, dict):
        yield found
    for each in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from schemas(each)


def bodies(route: Route) -> tuple[Any, ...]:
    return route.body.kinds if isinstance(route.body, OneOrMany) else (route.body,)


def check_instants(kind: Any, known: dict[str, Any], seen: set[type]) -> None:
    if isinstance(kind, msgspec.inspect.StructType):
        if kind.cls in seen:
            return
        seen.add(kind.cls)
        fields = known[kind.cls.__name__]["properties"]
        for field in kind.fields:
            shapes = fields[field.encode_name].get("anyOf", [fields[field.encode_name]])
            is_instant = any(isinstance(each, msgspec.inspect.DateTimeType) for each in _parts(field.type))
            assert is_instant == any(each.get("format") == "date-time" for each in shapes), (kind.cls, field.name)
            check_instants(field.type, known, seen)
    else:
        for each in _parts(kind)[1:]:
            check_instants(each, known, seen)


def _parts(kind: Any) -> list[Any]:
    """A type, and what it is made of."""
    inner = [*getattr(kind, "types", ()), *(getattr(kind, name, None) for name in ("item_type", "value_type", "type"))]
    return [kind, *(part for each in inner if isinstance(each, msgspec.inspect.Type) for part in _parts(each))]
