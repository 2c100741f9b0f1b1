"""Values that one process hands to another: JSON that reads back equal, type by type.

Beside what JSON has, whose floats keep every bit, these are tuples, dictionaries with any keys, counters, and classes that
say so (``handed_over``). Nothing else can come out of a text, whoever wrote it: no code, no class that is not one of these.
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
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def loads(text: bytes) -> Any:
    """What ``dumps`` was given; ``ValueError`` for a text that it did not write."""
    return _made(json.loads(text))


def _plain(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    kind = type(value).__name__
    if kind not in _KINDS:
        raise TypeError(f"a {kind} cannot be handed to another process")
    return [kind, *map(_plain, _KINDS[kind][0](value))]


def _made(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if not value or not isinstance(value[0], str) or value[0] not in _KINDS:
        raise ValueError(f"{value[:1]} is nothing that is handed over")
    return _KINDS[value[0]][1](*map(_made, value[1:]))


def _paired(kind: Callable[[Any], Any], flat: tuple[Any, ...]) -> Any:
    """Of keys, and as many values."""
    half = len(flat) // 2
    return kind(dict(zip(flat[:half], flat[half:], strict=True)))
