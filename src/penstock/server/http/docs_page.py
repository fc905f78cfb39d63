"""The page at /docs: the OpenAPI document for people. One page, nothing loaded from anywhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any, Final

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


def render(document: dict[str, Any]) -> bytes:
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
        _operation(method, path, operation, schemas)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if tag in operation["tags"]
    )
    return f'<h2 id="{_anchor(tag)}">{escape(tag)}</h2>{operations}'


def _anchor(tag: str) -> str:
    return tag.replace(" ", "-")


def _operation(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    example = _command(method.upper(), path, operation)
    parts = [f"<pre>{escape(example)}</pre>", _parameters(operation.get("parameters", []))]
    body = operation.get("requestBody")
    if body is not None:
        schema = body["content"]["application/json"]["schema"]
        parts.append(f"<h4>Body</h4>{_fields(schema, schemas)}")
    parts += [_responses(operation["responses"], schemas)]
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


def _responses(responses: dict[str, Any], schemas: dict[str, Any]) -> str:
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
        f"<td>{'required' if name in required else _default(kind)}</td></tr>"
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
