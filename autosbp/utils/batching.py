"""Batching of equal kinds of things, such as tensors of a message, up to a size limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def batch_by_kind(
    things: Iterable[T], kind: Callable[[T], object], num_bytes: Callable[[T], int], limit: int
) -> list[tuple[object, list[T]]]:
    """Group things of one kind, in order, into batches of up to ``limit`` bytes.

    A larger thing gets a batch of its own, without ending the open batch. Batches are ordered by their first member.
    """
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
