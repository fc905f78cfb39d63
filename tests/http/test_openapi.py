"""The OpenAPI document: it is valid, it describes every route, and requests made up from it find no fault."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import jsonschema_rs
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import booleans
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.server.http.openapi import document
from penstock.server.http.routes import PROFILES, ROUTES
from penstock.wire.json_options import OPTION_NAMES
from penstock.wire.json_reader import OneOrMany, Reader
from tests.support.dose import dose
from tests.support.http import HttpThread

DOCS = Path(__file__).parents[2] / "docs" / "http.md"
EXAMPLES = dose(10, 500)
SCHEMA = schemathesis.openapi.from_dict(document(ROUTES))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_the_document_describes_every_route_under_a_name_of_its_own(server):
    found = server.http.get("/openapi.json").json()
    described = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    names = [operation["operationId"] for methods in found["paths"].values() for operation in methods.values()]

    assert found["openapi"] == "3.1.0"
    assert described == {(route.method, route.path) for route in ROUTES}
    assert len(set(names)) == len(names)


def test_the_document_is_sound():
    found = document(ROUTES)
    schemas = found["components"]["schemas"]
    references = set(re.findall(r"'#/components/schemas/(\w+)'", str(found)))

    for schema in schemas.values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    assert references <= set(schemas)
    for path, methods in found["paths"].items():
        for operation in methods.values():
            placed = {each["name"] for each in operation.get("parameters", []) if each["in"] == "path"}
            assert placed == set(re.findall(r"{(\w+)}", path))


def test_descriptions_are_those_of_the_operations_in_the_words_of_json():
    found = document(ROUTES)
    join = found["paths"]["/api/v1/queues/{queue}/groups/{group}/members"]["post"]
    descriptions = [schema.get("description", "") for schema in found["components"]["schemas"].values()]

    assert join["summary"] == "Join a group as a member"
    assert join["description"].startswith("A member that sends no heartbeat for `session_ms` is removed.")
    assert not [text for text in descriptions if "_seconds`" in text or "None" in text or "\n    " in text]


def test_a_seek_answers_with_nothing_and_its_dry_run_with_a_preview():
    responses = document(ROUTES)["paths"]["/api/v1/queues/{queue}/groups/{group}/seek"]["post"]["responses"]

    assert "content" not in responses["204"]
    assert responses["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/SeekPreview"}


def test_every_queue_option_is_in_the_document_with_durations_in_milliseconds():
    options = document(ROUTES)["components"]["schemas"]["OptionsChange"]["properties"]

    assert set(options) == {*OPTION_NAMES, "backoff"}  # which stands for four of them
    assert not [name for name in options if name.endswith("_seconds")]
    assert options["lease_ms"]["maximum"] == 43_200_000


def test_the_page_for_people_lists_every_route_and_loads_nothing(server):
    page = server.http.get("/docs")

    assert page.headers["content-type"].startswith("text/html")
    assert [route for route in ROUTES if f"<code>{route.path}</code>" not in page.text] == []
    assert [route for route in ROUTES if html.escape(route.summary) not in page.text] == []
    assert not re.search(r"<script|src=|https?://", page.text)


def test_every_body_has_an_example_and_it_is_a_sound_one():
    for route in (*ROUTES, *PROFILES):
        if route.body is not None:
            reader = route.body if isinstance(route.body, OneOrMany) else Reader(route.body)
            assert route.example, route.name
            reader.read(json.dumps(route.example).encode())
        elif route.example:
            texts = {name: str(value) for name, value in route.example.items()}
            assert set(msgspec.to_builtins(msgspec.convert(texts, route.query, strict=False))) >= set(texts)


def test_the_page_shows_a_command_for_every_route(server):
    page = html.unescape(server.http.get("/docs").text)

    assert "<pre>curl localhost:7711/api/v1/queues/orders/purge -X POST</pre>" in page
    assert """<pre>curl localhost:7711/api/v1/queues/orders -X PATCH -d '{"max_attempts": 10}'</pre>""" in page
    assert "<pre>curl 'localhost:7711/api/v1/queues/orders/peek?limit=5'</pre>" in page
    assert page.count("<pre>curl ") == len(ROUTES)


def test_the_front_door_leads_to_the_page(server):
    found = server.http.get("/", follow_redirects=False)

    assert (found.status_code, found.headers["location"]) == (307, "ui/")


def test_every_route_is_documented_with_an_example():
    text = DOCS.read_text(encoding="utf-8")
    commands = "\n".join(re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    described = set(re.findall(r"^### `(\w+) (\S+)`$", text, re.MULTILINE))

    assert described == {(route.method, route.path) for route in (*ROUTES, *PROFILES)}
    assert [route.path for route in ROUTES if not re.search(shape(route.path), commands)] == []


def shape(path: str) -> str:
    """A pattern for a path with its parts filled in."""
    return re.sub(r"{\w+}", r"[\\w.-]+", path) + r"(?=['\"\s?]|$)"


@pytest.fixture(scope="module")
def running():
    server = HttpThread()
    yield server
    server.stop()


MODES = [
    (route, mode)
    for route in ROUTES
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    if mode is GenerationMode.POSITIVE or route.body is not None  # without a body there is little to get wrong
]


@pytest.mark.parametrize(("route", "mode"), MODES, ids=[f"{route.name}-{mode.value}" for route, mode in MODES])
def test_requests_made_up_from_the_document_find_no_fault(running, route, mode):
    operation = SCHEMA[route.path][route.method]

    @given(case=operation.as_strategy(generation_mode=mode), anywhere=booleans())
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def ask(case, anywhere):
        for part in (case.body, case.query):
            if isinstance(part, dict):
                part.pop("wait_ms", None)  # a test does not wait
        if "{queue}" in route.path and not anywhere:
            # What came before may have limited the queue: whether there is something new in it does not matter.
            running.http.post("/api/v1/queues/mail/messages", json={"messages": [{"payload": 1}]})
            case.path_parameters["queue"] = "mail"
        if "{task_id}" in route.path and not anywhere:
            made = running.http.post("/api/v1/tasks", json={"task_type": "a", "queue": "tasks"}).json()
            case.path_parameters["task_id"] = made["tasks"][0]["task_id"]
        case.call_and_validate(base_url=f"http://127.0.0.1:{running.port}", checks=CHECKS)

    running.http.post("/api/v1/resume")  # what came before may have paused the broker
    ask()
