"""``docs/reference/http-api.md``: every route of the service, from ``docs/openapi.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.docs_pages.markdown import heading, plain, table

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
INTRODUCTION = """Every route of the service. [openapi.json](../openapi.json) is the whole interface, with all schemas; the page
`/docs` of a running service shows it and lets you try it. [HTTP conventions](http-conventions.md) describes what all
routes have in common: errors, idempotency, ETags, lists, long work. `autosbp.client.Client` has a method for every route.
"""
_IN_ALL = {
    "limit",
    "cursor",
    "created_after",
    "created_before",
    "If-None-Match",
    "if-match",
    "Idempotency-Key",
    "cascade",
}


def http_api_page() -> str:
    """The whole page."""
    document = json.loads(DOCUMENT.read_text())
    parts = [heading("HTTP API", "`docs/openapi.json`", INTRODUCTION)]
    for tag, routes in _by_tag(document).items():
        rows = [_row(method, path, route) for method, path, route in routes]
        parts.append(f"## {tag}\n\n{table(['route', 'scope', 'what it does', 'sends', 'answers'], rows)}")
    parts.append("## Schemas\n\nBodies that clients send.\n")
    parts += list(_schemas(document))
    return "\n".join(parts)


def _by_tag(document: Mapping[str, Any]) -> dict[str, list[tuple[str, str, Mapping[str, Any]]]]:
    found: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, routes in document["paths"].items():
        for method, route in routes.items():
            found.setdefault(route["tags"][0], []).append((method, path, route))
    return found


def _row(method: str, path: str, route: Mapping[str, Any]) -> list[str]:
    scopes = [scope for each in route.get("security", ()) for scopes in each.values() for scope in scopes]
    names = [each["name"] for each in route.get("parameters", ()) if f"{{{each['name']}}}" not in path]
    own = [f"`{name}`" for name in names if name not in _IN_ALL]
    body = _names(route.get("requestBody", {}).get("content", {}))
    good = {code: answer for code, answer in route["responses"].items() if code < "300"}
    answers = [f"{code} {', '.join(_names(answer.get('content', {})))}".strip() for code, answer in good.items()]
    return [
        f"`{method.upper()} {path}`",
        " or ".join(f"`{scope}`" for scope in scopes) or "none",
        plain(route.get("summary", "")),
        ", ".join([*body, *own]),
        ", ".join(answers),
    ]


def _names(content: Mapping[str, Any]) -> list[str]:
    """Of the schemas of a body."""
    found: list[str] = []
    for kind, each in content.items():
        schema = each.get("schema", {})
        options = schema.get("anyOf") or schema.get("oneOf") or [schema]
        names = [str(option["$ref"]).rpartition("/")[2] for option in options if "$ref" in option]
        found += names or ([] if kind == "application/json" else [kind])
    return [f"`{name.replace('Page_', 'page of ').strip('_')}`" for name in dict.fromkeys(found)]


def _schemas(document: Mapping[str, Any]) -> Iterator[str]:
    schemas = document["components"]["schemas"]
    sent = [
        name
        for name in schemas
        if name.endswith(("Request", "Model", "Options", "Cluster")) and name not in ("Model", "Cluster")
    ]
    for name in sent:
        schema = schemas[name]
        required = schema.get("required", ())
        rows = [
            [f"`{key}`" + (" (required)" if key in required else ""), _type(each), plain(each.get("description", ""))]
            for key, each in schema.get("properties", {}).items()
        ]
        yield f"### {name}\n\n{plain(schema.get('description', ''))}\n\n{table(['member', 'type', 'meaning'], rows)}"


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{str(schema['$ref']).rpartition('/')[2]}`"
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(option) for option in options))
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))
