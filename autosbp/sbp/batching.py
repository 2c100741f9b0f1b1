"""Things of one kind that travel together, in messages of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def batched(
    things: Iterable[T], kind: Callable[[T], object], num_bytes: Callable[[T], int], limit: int
) -> list[tuple[object, list[T]]]:
    """Things of one kind together, in order, in batches of up to ``limit`` bytes; a larger one is alone, between them.
    Batches are in the order of their first."""
    batches: list[tuple[object, list[T]]] = []
    open_batches: dict[object, tuple[list[T], int]] = {}
    for thing in things:
        label, size = kind(thing), num_bytes(thing)
        if size > limit:
            batches.append((label, [thing]))
            continue
        members, total = open_batches.get(label, ([], limit))
        if not members or total + size > limit:
            members, total = [], 0
            batches.append((label, members))
        members.append(thing)
        open_batches[label] = members, total + size
    return batches
