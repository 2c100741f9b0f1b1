"""Serialization of values between processes: JSON that reads back equal, including types.

Besides JSON's values, whose floats keep every bit, it supports tuples, dictionaries with any keys, counters, and
classes registered by ``serializable``. A text, even an untrusted one, can create nothing else: no code, and no other
class.

A text is a list of values, and the last one holds the serialized value. Each is ``[type, members]``; a member is a JSON
value, or ``[place]``, the index of an earlier value. So a value that occurs several times, such as a strategy's
layouts, is written and created once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

C = TypeVar("C", bound=type)
_KINDS: dict[str, tuple[Callable[[Any], list[Any]], Callable[..., Any]]] = {
    "list": (list, lambda *members: list(members)),
    "tuple": (list, lambda *members: members),
    "dict": (lambda value: [*value, *value.values()], lambda *flat: _paired(dict, flat)),
    "Counter": (lambda value: [*value, *value.values()], lambda *flat: _paired(Counter, flat)),
}
"""For each type name: a function that lists a value's members, and one that makes a value from them."""


def serializable(kind: C, *attributes: str) -> C:
    """Register a class as serializable by the attributes that its constructor takes; by default a dataclass's fields."""
    names = attributes or tuple(each.name for each in fields(kind))
    if kind.__name__ in _KINDS:
        raise TypeError(f"a class named {kind.__name__} is already registered")
    _KINDS[kind.__name__] = (lambda value: [getattr(value, name) for name in names], kind)
    return kind


def dumps(value: object) -> bytes:
    """Serialize ``value``; raise ``TypeError`` for values that are not serializable."""
    entries: list[list[object]] = []
    _encode_member([value], entries, {}, [])
    return json.dumps(entries, separators=(",", ":")).encode()


def loads(text: bytes) -> Any:
    """Inverse of ``dumps``; raise ``ValueError`` for a text that it did not write."""
    made: list[Any] = []
    for entry in _list(json.loads(text)):
        kind, *members = _list(entry) or [None]
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ValueError(f"unknown type {entry[:1]}")
        values = [_member(each, made) if isinstance(each, (list, dict)) else each for each in members]
        try:
            made.append(_KINDS[kind][1](*values))
        except TypeError as error:
            raise ValueError(f"wrong members of a {kind}") from error
    if not made or not isinstance(made[-1], list) or len(made[-1]) != 1:
        raise ValueError("expected a list of one value at the end")
    return made[-1][0]


def _encode_member(value: object, entries: list[list[object]], places: dict[int, int], alive: list[object]) -> object:
    """The member that stands for a value; the value is added to ``entries`` first.

    ``alive`` keeps members that are created on the fly, so that their ids stay unique.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    place = places.get(id(value))
    if place is None:
        kind = type(value).__name__
        if kind not in _KINDS:
            raise TypeError(f"{kind} is not serializable")
        alive.append(value)
        entry = [kind, *[_encode_member(each, entries, places, alive) for each in _KINDS[kind][0](value)]]
        place = places[id(value)] = len(entries)
        entries.append(entry)
    return [place]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {value!r:.40}")
    return value


def _member(place: Any, made: list[Any]) -> Any:
    """The earlier value at this place."""
    if len(_list(place)) != 1 or type(place[0]) is not int or not 0 <= place[0] < len(made):
        raise ValueError(f"invalid reference {place[:2]}")
    return made[place[0]]


def _paired(kind: Callable[[Any], Any], flat: tuple[Any, ...]) -> Any:
    """A dictionary of the keys in the first half and the values in the second half of ``flat``."""
    half = len(flat) // 2
    return kind(dict(zip(flat[:half], flat[half:], strict=True)))
