"""Generates types of the API's answers for its client: TypedDicts from the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_HEAD = (
    '"""What the service answers with: written by scripts/openapi from docs/openapi.json, to which a test holds it."""'
)
_IMPORTS = "from __future__ import annotations\n\nfrom typing import Any, Literal, TypedDict\n"
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_REFERENCE = "#/components/schemas/"


def typed_documents(openapi: Mapping[str, Any]) -> str:
    """Return the source of ``autosbp.client.documents``: a TypedDict for each schema of an answer with listed members.

    Deterministic. Members that are objects of any shape, such as plans, are ``dict[str, Any]``.
    """
    schemas: Mapping[str, Any] = openapi["components"]["schemas"]
    wanted = {name for name, schema in schemas.items() if _is_answer(name, schema)}
    classes = [_class(name, schemas[name], wanted) for name in sorted(wanted)]
    return "\n\n".join([f"{_HEAD}\n\n{_IMPORTS}", *classes])


def _is_answer(name: str, schema: Mapping[str, Any]) -> bool:
    """Whether a schema is of an answer that the client returns.

    Requests and file formats forbid other members, problems become exceptions, and the client unpacks pages itself.
    """
    return "properties" in schema and "additionalProperties" not in schema and not name.startswith("Page_")


def _class(name: str, schema: Mapping[str, Any], known: set[str]) -> str:
    head, _, _ = schema["description"].partition("\n")
    required = set(schema["required"])
    assert required == set(schema["properties"]), f"{name}: an answer has all its members"
    members = "".join(f"    {key}: {_type(part, known)}\n" for key, part in schema["properties"].items())
    return f'class {name}(TypedDict):\n    """{head}"""\n\n{members}'


def _type(part: Mapping[str, Any], known: set[str]) -> str:
    if "$ref" in part:
        name = str(part["$ref"]).removeprefix(_REFERENCE)
        return name if name in known else "dict[str, Any]"
    if "anyOf" in part:
        return " | ".join(_type(each, known) for each in part["anyOf"])
    if "enum" in part:
        return f"Literal[{', '.join(map(json.dumps, part['enum']))}]"
    if part["type"] == "array":
        return f"list[{_type(part['items'], known)}]"
    if part["type"] == "object":
        inner = part.get("additionalProperties", True)
        return f"dict[str, {_type(inner, known) if isinstance(inner, dict) and inner else 'Any'}]"
    return _PLAIN[part["type"]]
