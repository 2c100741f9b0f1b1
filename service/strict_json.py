"""Strict JSON parsing of request bodies: JSON that every parser reads the same way, else a 422.

Memory use depends on the number of values far more than on bytes, so values are counted before parsing. Python's C
parser holds the GIL until it is done, so large bodies use a pure Python parser, which lets other threads run.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

from fastapi import HTTPException

from autosbp.errors import InputError
from autosbp.service.problem_details import ProblemError

MAX_VALUES = 5 * 2**19
_COUNTED_TOKENS = (b",", b":", b"[", b"{")
_MAX_C_DECODER_VALUES = 2**18
_CHUNK_BYTES = 2**18
_CHUNK_MEMBERS = 2**14
_MAYBE_BAD = ("\\u0000", "\\ud", "\\uD")


class BadBodyError(HTTPException):
    """Carries a body's error through the framework's body parsing."""

    def __init__(self, error: InputError | ProblemError) -> None:
        self.error = error
        super().__init__(error.status if isinstance(error, ProblemError) else 422, str(error))


def parse(body: bytes | bytearray, max_depth: int = 64, max_values: int = MAX_VALUES, what: str = "body") -> Any:
    """Parse a request body.

    Numbers that overflow to infinity, lone surrogates and NUL characters are refused: neither the canonical form nor
    every database can hold them. A ``bytearray`` is emptied as soon as it is decoded, so that a large body is in memory
    once.

    Args:
        body: JSON in UTF-8.
        max_depth: limit of nested lists and objects.
        max_values: limit of commas, colons and opening brackets together.
        what: name of the document in errors.

    Raises:
        InputError: syntax errors, NaN, infinities, bad UTF-8 or text, duplicate member names, or a limit exceeded.
    """
    decoder = _PYTHON_DECODER if _count(body, max_values, what) > _MAX_C_DECODER_VALUES else _C_DECODER
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InputError(what, str(error), "expected JSON in UTF-8") from None
    if isinstance(body, bytearray):
        body.clear()
    try:
        document = decoder.decode(text)
    except _RefusedError as refusal:
        raise InputError(what, refusal.value, refusal.limit) from None
    except (ValueError, RecursionError) as error:
        raise InputError(what, str(error), "expected valid JSON") from None
    _check_depth(document, max_depth, what)
    if any(escape in text for escape in _MAYBE_BAD):
        _check_text(json.dumps(document, ensure_ascii=False), what)
    return document


class _RefusedError(Exception):
    def __init__(self, value: str, limit: str) -> None:
        self.value, self.limit = value, limit
        super().__init__(limit)


def _count(body: bytes | bytearray, max_values: int, what: str) -> int:
    count = 0
    for start in range(0, len(body), _CHUNK_BYTES):
        part = body[start : start + _CHUNK_BYTES]
        count += sum(map(part.count, _COUNTED_TOKENS))
        if count > max_values:
            limit = f"expected at most {max_values} commas, colons and opening brackets"
            raise InputError(what, f"more than {max_values} values", limit)
    return count


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object and refuse duplicate names, of which parsers take the first, the last, or neither.

    Pairs are removed as members are added, so that millions of them are not in memory twice.
    """
    members: dict[str, Any] = {}
    pairs.reverse()
    while pairs:  # in chunks, so that other threads run in between
        part = pairs[-_CHUNK_MEMBERS:]
        del pairs[-_CHUNK_MEMBERS:]
        before = len(members)
        members.update(reversed(part))
        if len(members) != before + len(part):
            raise _RefusedError(_find_duplicate(members, before, part), "duplicate name in an object")
    return members


def _find_duplicate(members: dict[str, Any], before: int, part: list[tuple[str, Any]]) -> str:
    """Find a name that is twice in ``part``, or in it and among the first ``before`` members."""
    counts = Counter(name for name, _ in part)
    counts.update(name for name in islice(members, before) if name in counts)
    return next(name for name, count in counts.items() if count > 1)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _RefusedError(text, "JSON numbers must be finite")
    return number


class _NameInterner(dict[str, str]):
    """Interned member names; at most ``_CHUNK_MEMBERS``, because the names of a body with millions of members all differ."""

    def setdefault(self, name: str, default: str) -> str:
        """Return the interned text of a name."""
        return super().setdefault(name, default) if len(self) < _CHUNK_MEMBERS else self.get(name, default)


class _Decoder(json.JSONDecoder):
    def __init__(self, *, patient: bool) -> None:
        super().__init__(object_pairs_hook=_unique_members, parse_float=_finite, parse_constant=_finite)
        if patient:  # the same scanner in pure Python, ten times slower
            self.memo = _NameInterner()
            self.scan_once = py_make_scanner(self)


_C_DECODER, _PYTHON_DECODER = _Decoder(patient=False), _Decoder(patient=True)


def _check_depth(document: Any, max_depth: int, what: str) -> None:
    layer: list[Any] = [document]
    for _ in range(max_depth + 1):
        layer = [each for one in layer if isinstance(one, (dict, list)) for each in _members(one)]
        if not layer:
            return
    raise InputError(what, "nesting", f"expected at most {max_depth} levels of nesting")


def _members(one: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return one.values() if isinstance(one, dict) else one


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(what, ascii(error.object[error.start]), "expected valid Unicode in strings") from None
    if "\\u0000" in text.replace("\\\\", ""):  # an escaped backslash before "u0000" is not a NUL
        raise InputError(what, "\\u0000", "expected strings without NUL characters")
