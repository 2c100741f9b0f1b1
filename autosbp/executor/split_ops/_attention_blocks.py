"""Blocks of attention: rectangles and triangles of queries and keys, combined by log-sum-exp (Dao 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch

MAX_SCORES = 1 << 26
"""Maximum number of scores that an unfused kernel holds at once."""


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """Spans (start and length) of queries and keys; ``triangle``: query i of the block sees its keys 0 to i."""

    query: tuple[int, int]
    key: tuple[int, int]
    triangle: bool = False


def causal_blocks(ahead: int, queries: int, keys: int) -> Iterator[AttentionBlock]:
    """Blocks in which query i sees keys 0 to i + ``ahead``.

    Queries that see all keys form a rectangle; the others a rectangle and a triangle.
    """
    low, high = max(0, -ahead), min(queries, max(0, keys - ahead))
    if low < high:
        before = low + ahead
        if before:
            yield AttentionBlock((low, high - low), (0, before))
        yield AttentionBlock((low, high - low), (before, high - low), triangle=True)
    if high < queries and keys:
        yield AttentionBlock((high, queries - high), (0, keys))


def plan_blocks(query: torch.Tensor, key: torch.Tensor, ahead: int | None, *, fused: bool) -> list[AttentionBlock]:
    """All blocks of a call; ``ahead`` as in ``causal_blocks``, None if every query sees every key."""
    queries, keys = query.shape[-2], key.shape[-2]
    rows = queries if fused else max(1, MAX_SCORES // max(1, prod(query.shape[:-2]) * keys))
    blocks = []
    for start in range(0, queries, rows):
        count = min(rows, queries - start)
        whole = [AttentionBlock((0, count), (0, keys))]
        for block in whole if ahead is None else causal_blocks(ahead + start, count, keys):
            blocks.append(AttentionBlock((block.query[0] + start, block.query[1]), block.key, block.triangle))
    return blocks
