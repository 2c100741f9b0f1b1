"""Integer attributes of a call by their path: those that a rank with a shard of the tensors must divide, too.

A path is a position or a keyword, then positions in nested lists: ``(1, 2)`` is the third entry of the second argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

Path = tuple[int | str, ...]
_Args = TypeVar("_Args", list[Any], tuple[Any, ...])


def integer_attributes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[Path, int]]:
    """Yield every integer attribute with its path, in order."""
    for at, arg in enumerate(args):
        yield from _integers(arg, (at,))
    for word, arg in kwargs.items():
        yield from _integers(arg, (word,))


def _integers(arg: Any, path: Path) -> Iterator[tuple[Path, int]]:
    if isinstance(arg, tuple):
        for at, item in enumerate(arg):
            yield from _integers(item, (*path, at))
    elif type(arg) is int:
        yield path, arg


def attribute(args: Sequence[Any], kwargs: Mapping[str, Any], path: Path) -> Any:
    """The attribute at ``path``; raise ``IndexError``, ``KeyError`` or ``TypeError`` if it does not exist."""
    value: Any = kwargs[path[0]] if isinstance(path[0], str) else args[path[0]]
    for at in path[1:]:
        value = value[at]
    return value


def divide_attribute(args: _Args, kwargs: Mapping[str, Any], path: Path, parts: int) -> tuple[_Args, dict[str, Any]]:
    """The arguments with the integer at ``path`` divided by ``parts``."""
    if isinstance(path[0], str):
        return args, {**kwargs, path[0]: _divided(kwargs[path[0]], path[1:], parts)}
    return _divided(args, path, parts), dict(kwargs)


def _divided(arg: Any, path: Path, parts: int) -> Any:
    if not path:
        return arg // parts
    at = path[0]
    assert isinstance(at, int)
    items = list(arg)
    items[at] = _divided(items[at], path[1:], parts)
    return type(arg)(items)
