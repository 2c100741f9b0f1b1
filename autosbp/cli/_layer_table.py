"""Group a strategy's parameters and ops by name, with repeated layers as one row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosbp.sbp.layout import Sbp, parse_nd_sbp

_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")
_SUFFIX = re.compile(r"(?<=[a-z])_\d+$")


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Values with the same name, apart from the layer number, and the same layout."""

    name: str
    num_members: int
    layout: str


def family(name: str) -> str:
    """Name without its number: ``h.3.mlp.weight`` gives ``h.*.mlp.weight``, ``linear_7`` gives ``linear``."""
    return _INDEX.sub("*", _SUFFIX.sub("", name) if "." not in name else name)


def group_by_family(layouts: Mapping[str, str]) -> list[LayerGroup]:
    """Families of equal layout or signature, in the order of their first members."""
    counts: dict[tuple[str, str], int] = {}
    for name, layout in layouts.items():
        key = (family(name), layout)
        counts[key] = counts.get(key, 0) + 1
    return [LayerGroup(name, count, layout) for (name, layout), count in counts.items()]


def axis_phrases(layout: str) -> list[str]:
    """One phrase per mesh axis for a stored parameter's layout."""
    return [_word(sbp) for sbp in parse_nd_sbp(layout)]


def _word(sbp: Sbp) -> str:
    if sbp.is_split:
        return f"split dim {sbp.dim}"
    return {"B": "whole, gradient summed", "I": "whole, same work on all"}.get(sbp.kind, str(sbp))


def axis_titles(axes: Sequence[Sequence[object]]) -> list[str]:
    """``n0 (2)`` for each mesh axis of a plan's document."""
    return [f"{name} ({size})" for name, size, *_ in axes]
