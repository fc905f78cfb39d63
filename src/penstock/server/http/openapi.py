"""OpenAPI 3.1, from the table of routes and the models."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from penstock.server.http.routes import COMMON, SECTIONS, Nothing, Route
from penstock.version import VERSION
from penstock.wire.errors import CLASSES, http_status
from penstock.wire.json_models import ErrorView
from penstock.wire.json_reader import OneOrMany

REF: Final = "#/components/schemas/{name}"
NAME: Final = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"}
_UUID: Final = "0190f3a2-7b1c-7c00-8000-0123456789ab"
# Parameters of paths: what they are, their schema, and an example.
PARAMETERS: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "queue": ("The name of a queue.", NAME, "orders"),
    "group": ("The name of a group.", NAME, "billing"),
    "member": ("The name of a member of the group.", NAME, "worker-1"),
    "partition": ("The name or the number of a partition.", NAME, "0"),
    "offset": ("The offset of a message in its partition.", {"type": "integer", "minimum": 0}, "7"),
    "task_id": ("The id of a task.", {"type": "string", "format": "uuid"}, _UUID),
    "worker_id": ("The id of a worker: the `consumer` of its leases.", NAME, "worker-1"),
    "name": ("The name of what is created, changed or deleted.", NAME, "nightly"),
    "key_id": ("The id of a key.", {"type": "string"}, "5c14e38e9e47"),
    "operation_id": ("The id of an operation.", {"type": "string"}, _UUID),
}
DESCRIPTION: Final = """\
A durable queue over HTTP. `payload` is JSON and comes back byte for byte; `payload_base64` is for bytes. Durations are
`*_ms`, instants are RFC 3339. Every error is `{"error": {"code", "message", "hint"}}`, its code the same in every
protocol. `X-Request-Id` is repeated in the response, or made up. Streams and live events: a WebSocket at
`/api/v1/stream`."""


def document(routes: tuple[Route, ...]) -> dict[str, Any]:
    """The document that describes these routes."""
    kinds = [kind for route in routes for kind in (*_shapes(route.body), route.query, route.result) if kind is not None]
    _, components = msgspec.json.schema_components([*kinds, ErrorView], ref_template=REF)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": VERSION, "description": DESCRIPTION},
        "tags": [{"name": name} for name in SECTIONS],
        "paths": paths,
        "components": {"schemas": {name: _whole(schema) for name, schema in components.items()}},
    }


def _whole(schema: Any) -> Any:
    """A schema that says of every array what its items are, be it anything, and which strings are instants.

    Generators of clients insist on the first, and make datetimes of the second.
    """
    if isinstance(schema, list):
        return [_whole(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {name: _whole(part) for name, part in schema.items()}
    if whole.get("type") == "array" and "prefixItems" not in whole:
        whole.setdefault("items", {})
    for name, field in whole.get("properties", {}).items():
        if name.endswith("_at"):
            for part in field.get("anyOf", [field]):
                if part.get("type") == "string":
                    part["format"] = "date-time"
    return whole


def _operation(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.section],
        "responses": _responses(route),
    }
    parameters = [*_path_parameters(route), *_query_parameters(route, components)]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": _schema(route.body), "example": route.example}}
        operation["requestBody"] = {"required": not route.is_body_optional, "content": content}
    return operation


def _shapes(body: Any) -> tuple[Any, ...]:
    return body.kinds if isinstance(body, OneOrMany) else (body,)


def _schema(kind: Any) -> dict[str, Any]:
    if isinstance(kind, OneOrMany):
        return {"oneOf": [_schema(part) for part in kind.kinds]}
    schema: dict[str, Any] = msgspec.json.schema_components([kind], ref_template=REF)[0][0]
    return schema


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    parameters = []
    for name in re.findall(r"{(\w+)}", route.path):
        description, schema, example = PARAMETERS[name]
        about = {"description": description, "schema": schema, "example": example}
        parameters.append({"name": name, "in": "path", "required": True, **about})
    return parameters


def _query_parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query is Nothing:
        return []
    schema = components[route.query.__name__]
    parameters = []
    for name, field in schema["properties"].items():
        parameter = {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": _never_null(field),
        }
        if route.body is None and name in route.example:
            parameter["example"] = route.example[name]
        parameters.append(parameter)
    return parameters


def _never_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter is there or not; it is never null."""
    some = [part for part in schema.get("anyOf", ()) if part != {"type": "null"}]
    return some[0] if len(some) == 1 else {name: value for name, value in schema.items() if value is not None}


def _responses(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {str(route.success): _response(route)}
    if route.path in {"/livez", "/readyz"}:
        content = {"application/json": {"schema": _schema(route.result)}}
        return responses | {"503": {"description": "it is not", "content": content}}
    codes: dict[int, list[str]] = {}
    for code in sorted({*COMMON, *route.errors}):
        codes.setdefault(http_status(code), []).append(code)
    for status, names in sorted(codes.items()):
        responses[str(status)] = _error(names)
    return responses


def _response(route: Route) -> dict[str, Any]:
    if route.media != "application/json":
        return {"description": route.summary, "content": {route.media: {"schema": {"type": "string"}}}}
    if route.result is None:
        return {"description": "done"}
    return {"description": "done", "content": {"application/json": {"schema": _schema(route.result)}}}


def _error(codes: list[str]) -> dict[str, Any]:
    meanings = "; ".join(f"`{code}`: {(CLASSES[code].__doc__ or '').splitlines()[0].rstrip('.')}" for code in codes)
    return {"description": meanings, "content": {"application/json": {"schema": _schema(ErrorView)}}}
