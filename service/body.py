"""Strict reading of request bodies: JSON that every reader would read the same way, or a 422.

What a document takes in memory grows with how many values it has, far more than with its bytes: so those are counted before it
is read. Python's own reader holds the interpreter's lock until it is done, so one that lets others go on reads what is large.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

from fastapi import HTTPException

from autosbp.errors import InputError

MAX_VALUES = 3 * 2**20
_COUNTED = (b",", b":", b"[", b"{")
_QUICK_VALUES = 2**18
_CHUNK_BYTES = 2**18
_PART = 2**14
_MAYBE_BAD = ("\\u0000", "\\ud", "\\uD")


class BadBodyError(HTTPException):
    """Carries an ``InputError`` through the framework's body parsing."""

    def __init__(self, error: InputError) -> None:
        self.error = error
        super().__init__(422, str(error))


def parse(body: bytes, max_depth: int = 64, max_values: int = MAX_VALUES, what: str = "body") -> Any:
    """The document in ``body``; raises ``InputError`` for syntax errors, NaN, infinities, bad UTF-8 and bad text, for an object
    with two members of one name, for more than ``max_depth`` lists and objects in each other, and for more than ``max_values``
    commas, colons and opening brackets.

    Numbers that overflow to infinity, lone surrogates and NUL characters are refused: neither the canonical form nor
    every database can hold them.
    """
    decoder = _PATIENT if _count(body, max_values, what) > _QUICK_VALUES else _QUICK
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InputError(what, str(error), "JSON in UTF-8 is expected") from None
    try:
        document = decoder.decode(text)
    except _RefusedError as refusal:
        raise InputError(what, refusal.value, refusal.limit) from None
    except (ValueError, RecursionError) as error:
        raise InputError(what, str(error), "valid JSON is expected") from None
    _check_depth(document, max_depth, what)
    if any(escape in text for escape in _MAYBE_BAD):
        _check_text(json.dumps(document, ensure_ascii=False), what)
    return document


class _RefusedError(Exception):
    def __init__(self, value: str, limit: str) -> None:
        self.value, self.limit = value, limit
        super().__init__(limit)


def _count(body: bytes, max_values: int, what: str) -> int:
    count = 0
    for start in range(0, len(body), _CHUNK_BYTES):
        part = body[start : start + _CHUNK_BYTES]
        count += sum(map(part.count, _COUNTED))
        if count > max_values:
            limit = f"at most {max_values} commas, colons and opening brackets are expected"
            raise InputError(what, f"more than {max_values} values", limit)
    return count


def _members_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two members of one name readers take the first, the last, or none."""
    members: dict[str, Any] = {}
    for start in range(0, len(pairs), _PART):  # of many, so that others go on between them
        part = pairs[start : start + _PART]
        before = len(members)
        members.update(part)
        if len(members) != before + len(part):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise _RefusedError(twice, "each name is expected once in an object")
    return members


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _RefusedError(text, "JSON numbers must be finite")
    return number


class _Decoder(json.JSONDecoder):
    def __init__(self, *, patient: bool) -> None:
        super().__init__(object_pairs_hook=_members_once, parse_float=_finite, parse_constant=_finite)
        if patient:  # the same in Python, which takes ten times as long
            self.scan_once = py_make_scanner(self)


_QUICK, _PATIENT = _Decoder(patient=False), _Decoder(patient=True)


def _check_depth(document: Any, max_depth: int, what: str) -> None:
    layer: list[Any] = [document]
    for _ in range(max_depth + 1):
        layer = [each for one in layer if isinstance(one, (dict, list)) for each in _members(one)]
        if not layer:
            return
    raise InputError(what, "nesting", f"at most {max_depth} lists and objects in each other are expected")


def _members(one: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return one.values() if isinstance(one, dict) else one


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(what, ascii(error.object[error.start]), "strings must hold whole characters") from None
    if "\\u0000" in text.replace("\\\\", ""):  # an escaped backslash before "u0000" is no NUL
        raise InputError(what, "\\u0000", "strings must not hold NUL characters")
