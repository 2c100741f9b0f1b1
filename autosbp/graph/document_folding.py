"""Folding of repeated blocks in a graph document: each run of isomorphic blocks is written once, with its count.

Blocks are detected structurally: two nodes match if their ops, attributes and shapes are equal, and their references
point the same distance back, to the same outside value, or to leaves (parameters) whose names differ in one counter.
The folded form is ``{"repeat": COUNT, "nodes": [...]}``; a number in a name that starts at K and grows by D per block
is written ``{i*D+K}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autosbp.errors import GraphError

if TYPE_CHECKING:
    from autosbp.utils.periodic_runs import PeriodicRun

MAX_WIDTHS = 64
MIN_SAVED = 8
MAX_DEPTH = 8
_NUMBER = re.compile(r"\d+")
_SLOT = re.compile(r"\{i\*(\d{1,6})\+(\d{1,9})\}")
Document = dict[str, Any]


def fold_nodes(nodes: list[Document]) -> list[Document]:
    """Fold runs of repeated blocks; return ``nodes`` unchanged if there are no repeats.

    The longest run is folded first, then runs before and after it that save at least ``MIN_SAVED`` nodes, such as a
    decoder's next to an encoder's.
    """
    return _fold_runs(nodes, [json.dumps(_skeleton(node)) for node in nodes], 1, MAX_DEPTH)


def _fold_runs(nodes: list[Document], shapes: list[str], least: int, depth: int) -> list[Document]:
    """Fold recursively; ``depth`` bounds the time, because the pieces of one depth are at most as long as the whole."""
    for run in _candidate_runs(shapes) if depth else ():
        start, width, count = run.start, run.period, run.copies
        if width * (count - 1) < least:
            break
        template = _template(nodes, start, width, count)
        if template is not None:
            stop = start + width * count
            before = _fold_runs(nodes[:start], shapes[:start], MIN_SAVED, depth - 1)
            after = _fold_runs(nodes[stop:], shapes[stop:], MIN_SAVED, depth - 1)
            return [*before, {"repeat": count, "nodes": template}, *after]
    return nodes


def unfold_nodes(entries: Sequence[Any], max_nodes: int) -> list[Any]:
    """Inverse of ``fold_nodes``; raise ``GraphError`` for more than ``max_nodes`` nodes."""
    nodes: list[Any] = []
    for at, entry in enumerate(entries):
        if isinstance(entry, dict) and "repeat" in entry:
            count, block = entry["repeat"], entry.get("nodes")
            if not isinstance(block, list) or not block or len(entry) > 2 or type(count) is not int or count < 1:
                raise GraphError(f"nodes[{at}]", count, "expected repeat >= 1 with a list of at least one node")
            if len(nodes) + count * len(block) > max_nodes:
                raise GraphError("nodes", len(nodes) + count * len(block), f"expected at most {max_nodes} nodes")
            for index in range(count):
                nodes.extend(_fill(node, index) for node in block)
        else:
            nodes.append(entry)
    if len(nodes) > max_nodes:
        raise GraphError("nodes", len(nodes), f"expected at most {max_nodes} nodes")
    return nodes


def _skeleton(value: Any) -> Any:
    """The document without names, so that matching nodes have equal skeletons."""
    if isinstance(value, dict):
        return {key: "" if key in ("name", "ref") else _skeleton(item) for key, item in value.items()}
    return [_skeleton(item) for item in value] if isinstance(value, list) else value


def _candidate_runs(shapes: list[str]) -> list[PeriodicRun]:
    """Periodic runs of matching nodes, those that fold most first; the start may shift within a period."""
    from autosbp.utils.periodic_runs import PeriodicRun, key_ids, likely_periods, periodic_runs

    keys = key_ids(shapes)
    found = [
        PeriodicRun(run.start + shift, run.stop, period)
        for period in sorted(likely_periods(keys, MAX_WIDTHS))
        for run in periodic_runs(keys, period)
        for shift in range(min(period, 64))
    ]
    return sorted((run for run in found if run.copies >= 2), key=lambda run: -run.period * (run.copies - 1))[:256]


def _template(nodes: list[Document], start: int, width: int, count: int) -> list[Document] | None:
    """The block with slots in its names, or None if the names do not follow one counter."""
    first = nodes[start : start + width]
    second = nodes[start + width : start + 2 * width]
    template = [_merge(one, two) for one, two in zip(first, second, strict=True)]
    for index in range(count):
        for offset, node in enumerate(template):
            if node is None or _fill(node, index) != nodes[start + index * width + offset]:
                return None
    return [node for node in template if node is not None]


def _merge(one: Any, two: Any, key: str = "") -> Any:
    if isinstance(one, dict):
        merged = {name: _merge(item, two[name], name) for name, item in one.items()}
        return None if any(merged[name] is None and one[name] is not None for name in one) else merged
    if isinstance(one, list):
        items = [_merge(item, other) for item, other in zip(one, two, strict=True)]
        return None if any(new is None and old is not None for new, old in zip(items, one, strict=True)) else items
    if key in ("name", "ref") and one != two:
        return _merge_names(one, two)
    return one


def _merge_names(one: str, two: str) -> str | None:
    """A name with slots where the two differ, such as ``h.{i*1+0}.w`` for ``h.0.w`` and ``h.1.w``."""
    if _NUMBER.split(one) != _NUMBER.split(two):
        return None
    pairs = list(zip(_NUMBER.findall(one), _NUMBER.findall(two), strict=True))
    if any(int(high) < int(low) for low, high in pairs):
        return None
    numbers = iter(pairs)

    def slot(match: re.Match[str]) -> str:
        low, high = next(numbers)
        return match.group() if low == high else f"{{i*{int(high) - int(low)}+{int(low)}}}"

    return _NUMBER.sub(slot, one)


def _fill(value: Any, index: int) -> Any:
    if isinstance(value, dict):
        return {
            key: _SLOT.sub(lambda slot: str(int(slot.group(1)) * index + int(slot.group(2))), item)
            if key in ("name", "ref") and isinstance(item, str)
            else _fill(item, index)
            for key, item in value.items()
        }
    return [_fill(item, index) for item in value] if isinstance(value, list) else value
