"""OpenAPI 3.1, from the table of routes and the models; and the page at /docs, which shows it to people.

It is one page, and nothing is loaded from anywhere.
"""

from __future__ import annotations

import json
import re
from html import escape
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
    "namespace": (
        "The name of a namespace.",
        {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$"},
        "shop",
    ),
    "name": ("The name of the resource.", NAME, "nightly"),
    "key_id": ("The id of a key.", {"type": "string"}, "5c14e38e9e47"),
    "operation_id": ("The id of an operation.", {"type": "string"}, _UUID),
    "trace": ("A trace id.", {"type": "string"}, "4bf92f3577b34da6a3ce929d0e0e4736"),
    "workflow": ("The name of a workflow.", NAME, "import-7"),
    "connection_id": ("The id of a connection.", {"type": "string"}, "17"),
    "run": ("The id of a run of a pipeline.", NAME, "20300131T091200-7f3a"),
}
DESCRIPTION: Final = """\
A durable queue over HTTP. `payload` is JSON and is returned byte for byte; `payload_base64` is for bytes. Fields that
end in `_ms` are durations in milliseconds; times are RFC 3339. Every error is `{"error": {"code", "message", "hint"}}`,
with the same codes in every protocol. The response repeats the `X-Request-Id` of the request, or has a new one. For
streams and live events, open a WebSocket at `/api/v1/stream`."""


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
    """A schema in which every array has `items`, and strings that are times have a format.

    Client generators require the first, and use the second for datetimes.
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
    if route.description:
        operation["description"] = route.description
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
    """A query parameter is present or absent, never null."""
    some = [part for part in schema.get("anyOf", ()) if part != {"type": "null"}]
    return some[0] if len(some) == 1 else {name: value for name, value in schema.items() if value is not None}


def _responses(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {str(route.success): _response(route)}
    if route.may_be_empty:
        responses["204"] = {"description": "Success."}
    if route.path in {"/livez", "/readyz"}:
        content = {"application/json": {"schema": _schema(route.result)}}
        return responses | {"503": {"description": "It is not.", "content": content}}
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
        return {"description": "Success."}
    return {"description": "Success.", "content": {"application/json": {"schema": _schema(route.result)}}}


def _error(codes: list[str]) -> dict[str, Any]:
    meanings = "; ".join(f"`{code}`: {(CLASSES[code].__doc__ or '').splitlines()[0].rstrip('.')}" for code in codes)
    return {"description": meanings, "content": {"application/json": {"schema": _schema(ErrorView)}}}


_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; text-transform: capitalize; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .4rem 0; }
summary { padding: .5rem .8rem; cursor: pointer; overflow-wrap: anywhere; }
details > div { padding: 0 .8rem .8rem; }
code, pre { font: 14px/1.4 ui-monospace, monospace; }
pre { background: var(--soft); padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere; border-radius: .4rem; }
h4 { margin: 1rem 0 .4rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .25rem .5rem; border-top: 1px solid var(--line); }
td:first-child { min-width: 7rem; }
nav a { margin-right: 1rem; white-space: nowrap; text-transform: capitalize; }
.method { display: inline-block; min-width: 4.6rem; font-weight: 700; }
.what { opacity: .75; }
"""


def page(document: dict[str, Any]) -> bytes:
    """The page that shows an OpenAPI document."""
    info = document["info"]
    schemas = document["components"]["schemas"]
    tags = [tag["name"] for tag in document["tags"]]
    links = " ".join(f'<a href="#{_anchor(tag)}">{escape(tag)}</a>' for tag in tags)
    sections = "".join(_section(tag, document["paths"], schemas) for tag in tags)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} HTTP API</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} HTTP API</h1>"
        f"<p>{_prose(info['description'])}</p>"
        f'<p>Version {escape(info["version"])}. For programs: <a href="/openapi.json">openapi.json</a>.</p>'
        f"<nav>{links}</nav>{sections}</body></html>"
    ).encode()


def _section(tag: str, paths: dict[str, Any], schemas: dict[str, Any]) -> str:
    operations = "".join(
        _shown_operation(method, path, operation, schemas)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if tag in operation["tags"]
    )
    return f'<h2 id="{_anchor(tag)}">{escape(tag)}</h2>{operations}'


def _anchor(tag: str) -> str:
    return tag.replace(" ", "-")


def _shown_operation(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    example = _command(method.upper(), path, operation)
    about = f"<p>{_prose(operation['description'])}</p>" if "description" in operation else ""
    parts = [about, f"<pre>{escape(example)}</pre>", _parameters(operation.get("parameters", []))]
    body = operation.get("requestBody")
    if body is not None:
        schema = body["content"]["application/json"]["schema"]
        parts.append(f"<h4>Body</h4>{_fields(schema, schemas)}")
    parts += [_shown_responses(operation["responses"], schemas)]
    return (
        f'<details id="{escape(operation["operationId"])}"><summary><span class="method">{method.upper()}</span> '
        f'<code>{escape(path)}</code> <span class="what">{escape(operation["summary"])}</span></summary>'
        f"<div>{''.join(parts)}</div></details>"
    )


def _command(method: str, path: str, operation: dict[str, Any]) -> str:
    """The example of a route, as a line for a terminal."""
    parameters = [parameter for parameter in operation.get("parameters", ()) if "example" in parameter]
    names = {parameter["name"]: parameter["example"] for parameter in parameters if parameter["in"] == "path"}
    query = "&".join(
        f"{parameter['name']}={parameter['example']}" for parameter in parameters if parameter["in"] == "query"
    )
    address = f"localhost:7711{path.format_map(names)}" + (f"?{query}" if query else "")
    words = ["curl", f"'{address}'" if query else address]
    body = operation.get("requestBody")
    if method != ("GET" if body is None else "POST"):
        words += ["-X", method]
    if body is not None:
        words += ["-d", f"'{json.dumps(body['content']['application/json']['example'])}'"]
    return " ".join(words)


def _parameters(parameters: list[dict[str, Any]]) -> str:
    if not parameters:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(parameter['name'])}</code></td>"
        f"<td>{parameter['in']}{'' if parameter['required'] else ', optional'}</td>"
        f"<td>{escape(_type(parameter['schema']))}</td><td>{escape(parameter.get('description', ''))}</td></tr>"
        for parameter in parameters
    )
    return f"<h4>Parameters</h4><table>{rows}</table>"


def _shown_responses(responses: dict[str, Any], schemas: dict[str, Any]) -> str:
    rows = []
    for status, response in responses.items():
        schema = response.get("content", {}).get("application/json", {}).get("schema", {})
        shown = _fields(schema, schemas) if status.startswith("2") and schema else ""
        rows.append(f"<tr><th>{escape(status)}</th><td>{_prose(response['description'])}{shown}</td></tr>")
    return f"<h4>Responses</h4><table>{''.join(rows)}</table>"


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    """The fields of a model, those of the models within it too."""
    if "oneOf" in schema:
        return "<p>or</p>".join(_fields(part, schemas) for part in schema["oneOf"])
    model = schemas[_name(schema)]
    required = model.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_type(kind))}</td>"
        f"<td>{'required' if name in required else _default(kind)}</td>"
        f"<td>{_prose(kind.get('description', ''))}</td></tr>"
        for name, kind in model.get("properties", {}).items()
    )
    inner = "".join(
        f"<details><summary><code>{escape(name)}</code></summary>"
        f"<div>{_fields({'$ref': name}, schemas)}</div></details>"
        for name in dict.fromkeys(_references(model.get("properties", {})))
    )
    about = f"<p>{_prose(model['description'])}</p>" if "description" in model else ""
    return f"{about}<table>{rows}</table>{inner}"


def _references(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        own = [_name(schema)] if "$ref" in schema else []
        return own + [name for part in schema.values() for name in _references(part)]
    return [name for part in schema for name in _references(part)] if isinstance(schema, list) else []


def _name(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _default(schema: dict[str, Any]) -> str:
    return f"default <code>{escape(json.dumps(schema['default']))}</code>" if "default" in schema else "optional"


def _type(schema: dict[str, Any]) -> str:
    """A type in a few words."""
    if "$ref" in schema:
        return _name(schema)
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(json.dumps(part) for part in schema["enum"])
    kind = str(schema.get("type", "any JSON"))
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    limits = [f"{word} {_number(schema[name])}" for name, word in _LIMITS.items() if schema.get(name, ANY) < ANY]
    details = [*filter(None, [schema.get("format"), schema.get("contentEncoding")]), *limits]
    return f"{kind} ({', '.join(details)})" if details else kind


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else str(value)


ANY: Final = 1 << 53  # a limit from here on is only that of the machine
_LIMITS: Final = {"minimum": "from", "exclusiveMinimum": "over", "maximum": "to", "maxLength": "up to"}


def _prose(text: str) -> str:
    """Text with code in backticks."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
