"""Strict reading of request bodies: JSON that every reader would read the same way, or a 422."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from fastapi import HTTPException

from autosbp.errors import InputError
from autosbp.jsonio import loads


class BadBodyError(HTTPException):
    """Carries an ``InputError`` through the framework's body parsing."""

    def __init__(self, error: InputError) -> None:
        self.error = error
        super().__init__(422, str(error))


def parse(body: bytes, max_depth: int = 64) -> Any:
    """The document in ``body``; raises ``InputError`` for syntax errors, NaN, infinities, bad UTF-8 and bad text, and for
    more than ``max_depth`` lists and objects in each other.

    Numbers that overflow to infinity, lone surrogates and NUL characters are refused: neither the canonical form nor
    every database can hold them.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InputError("body", str(error), "JSON in UTF-8 is expected") from None
    document = loads(text, "body")
    try:
        json.dumps(document, allow_nan=False)
    except (ValueError, RecursionError):
        raise InputError("body", _first_infinite(text), "JSON numbers must be finite and nesting shallow") from None
    _check_depth(document, max_depth)
    if "\\u" in text:
        _check_text(json.dumps(document, ensure_ascii=False))
    return document


def _check_depth(document: Any, max_depth: int) -> None:
    layer: list[Any] = [document]
    for _ in range(max_depth + 1):
        layer = [each for one in layer if isinstance(one, (dict, list)) for each in _members(one)]
        if not layer:
            return
    raise InputError("body", "nesting", f"at most {max_depth} lists and objects in each other are expected")


def _members(one: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return one.values() if isinstance(one, dict) else one


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError("body", ascii(error.object[error.start]), "strings must hold whole characters") from None
    if "\\u0000" in text.replace("\\\\", ""):  # an escaped backslash before "u0000" is no NUL
        raise InputError("body", "\\u0000", "strings must not hold NUL characters")


def _first_infinite(text: str) -> str:
    found: list[str] = []

    def note(number: str) -> float:
        if math.isinf(value := float(number)):
            found.append(number)
        return value

    try:
        json.loads(text, parse_float=note)
    except RecursionError:
        return "nesting"
    return found[0] if found else "nesting"
