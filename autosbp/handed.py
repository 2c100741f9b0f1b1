"""Values that one process hands to another: JSON that reads back equal, type by type.

Beside what JSON has, whose floats keep every bit, these are tuples, dictionaries with any keys, counters, and classes that
say so (``handed_over``). Nothing else can come out of a text, whoever wrote it: no code, no class that is not one of these.

A text is a list of values, the last of them what was handed over. One is ``[type, members]``; a member is what JSON has, or
``[place]`` of a value before it. So what is met several times, as the layouts of a strategy are, is told and made once.
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
"""By the name of a type: its members, and how to make one of these again."""


def handed_over(kind: C, *attributes: str) -> C:
    """A class whose values may be handed over: made again of these attributes, in their order; a dataclass, of its fields."""
    names = attributes or tuple(each.name for each in fields(kind))
    if kind.__name__ in _KINDS:
        raise TypeError(f"two classes of the name {kind.__name__} are handed over")
    _KINDS[kind.__name__] = (lambda value: [getattr(value, name) for name in names], kind)
    return kind


def dumps(value: object) -> bytes:
    """``value`` as a text; ``TypeError`` for what cannot be handed over."""
    entries: list[list[object]] = []
    _told([value], entries, {}, [])
    return json.dumps(entries, separators=(",", ":")).encode()


def loads(text: bytes) -> Any:
    """What ``dumps`` was given; ``ValueError`` for a text that it did not write."""
    made: list[Any] = []
    for entry in _list(json.loads(text)):
        kind, *members = _list(entry) or [None]
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ValueError(f"{entry[:1]} is nothing that is handed over")
        values = [_member(each, made) if isinstance(each, (list, dict)) else each for each in members]
        try:
            made.append(_KINDS[kind][1](*values))
        except TypeError as error:
            raise ValueError(f"members of a {kind} are not as they are handed over") from error
    if not made or not isinstance(made[-1], list) or len(made[-1]) != 1:
        raise ValueError("a list of one value is handed over last")
    return made[-1][0]


def _told(value: object, entries: list[list[object]], places: dict[int, int], alive: list[object]) -> object:
    """A member that stands for the value, once that is among the entries. Members are made as they are asked for, and kept
    ``alive`` as long as their identities tell them apart."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    place = places.get(id(value))
    if place is None:
        kind = type(value).__name__
        if kind not in _KINDS:
            raise TypeError(f"a {kind} cannot be handed to another process")
        alive.append(value)
        entry = [kind, *[_told(each, entries, places, alive) for each in _KINDS[kind][0](value)]]
        place = places[id(value)] = len(entries)
        entries.append(entry)
    return [place]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.40} where a list is handed over")
    return value


def _member(place: Any, made: list[Any]) -> Any:
    """The value made before at this place."""
    if len(_list(place)) != 1 or type(place[0]) is not int or not 0 <= place[0] < len(made):
        raise ValueError(f"{place[:2]} is no place of a value")
    return made[place[0]]


def _paired(kind: Callable[[Any], Any], flat: tuple[Any, ...]) -> Any:
    """Of keys, and as many values."""
    half = len(flat) // 2
    return kind(dict(zip(flat[:half], flat[half:], strict=True)))
