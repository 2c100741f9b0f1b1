"""Boxing: the primitive steps from one layout of a tensor to another, and their derived backward (DESIGN section 6).

One step changes a set of mesh axes that share one state to one other state, or exchanges the states of two axes of
equal size (``permute``). What the step does forward and backward follows from the two states alone:

    from -> to    forward          backward         n (bytes of the message on one device)
    S -> B        all_gather       reduce_scatter   the gathered tensor
    S -> I        all_gather       slice
    S -> P        pad              slice
    S -> S'       all_to_all       all_to_all       the local tensor
    P -> S        reduce_scatter   all_gather       the unscattered tensor
    P -> B        all_reduce       all_reduce       the local tensor
    P -> I        all_reduce       -
    B -> S        slice            pad
    I -> S        slice            all_gather       the unsliced tensor
    I -> B        -                all_reduce       the local tensor
    B -> I        -                mask
    B -> P        mask             mask
    I -> P        mask             -
    permute       p2p              p2p              the local tensor

``pad`` writes zeros around the slice, ``mask`` keeps the value on the first rank of the group and zeros elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from math import prod

from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import B, I, NdSbp, P, S, Sbp

COLLECTIVES = frozenset(("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "p2p"))
ACTIONS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("S", "B"): ("all_gather", "reduce_scatter"),
    ("S", "I"): ("all_gather", "slice"),
    ("S", "P"): ("pad", "slice"),
    ("S", "S"): ("all_to_all", "all_to_all"),
    ("P", "S"): ("reduce_scatter", "all_gather"),
    ("P", "B"): ("all_reduce", "all_reduce"),
    ("P", "I"): ("all_reduce", "none"),
    ("B", "S"): ("slice", "pad"),
    ("I", "S"): ("slice", "all_gather"),
    ("I", "B"): ("none", "all_reduce"),
    ("B", "I"): ("none", "mask"),
    ("B", "P"): ("mask", "mask"),
    ("I", "P"): ("mask", "none"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive step over ``axes`` (mesh order). ``forward`` and ``backward`` name the actions of the table above;
    ``src_dim`` and ``dst_dim`` are the split dims where a side is S, else -1."""

    axes: tuple[int, ...]
    forward: str
    backward: str
    src_dim: int
    dst_dim: int
    src: NdSbp
    dst: NdSbp


def split_axes(layout: NdSbp, dim: int) -> list[int]:
    """Axes that split ``dim``, in mesh order."""
    return [axis for axis, sbp in enumerate(layout) if sbp.is_split and sbp.dim == dim]


def step_between(src: NdSbp, dst: NdSbp, mesh: Mesh) -> Step | None:
    """The primitive step from ``src`` to ``dst``, or None when there is none (sizes of dims are not checked).

    Partial maxima and minima have none: a reduction adds, and zeros are no neutral element of theirs.
    """
    changed = [axis for axis, (one, two) in enumerate(zip(src, dst, strict=True)) if one != two]
    if not changed or any(sbp.reduction != "sum" for axis in changed for sbp in (src[axis], dst[axis])):
        return None
    before = {src[axis] for axis in changed}
    after = {dst[axis] for axis in changed}
    if len(before) == 1 and len(after) == 1:
        return _uniform(src, dst, tuple(changed))
    if len(changed) == 2:
        return _permute(src, dst, (changed[0], changed[1]), mesh)
    return None


def _uniform(src: NdSbp, dst: NdSbp, axes: tuple[int, ...]) -> Step | None:
    one, two = src[axes[0]], dst[axes[0]]
    actions = ACTIONS.get((one.kind, two.kind))
    if actions is None:
        return None
    # Only the innermost axes of a split dim can be gathered, exchanged or added: outer ones would interleave shards.
    if one.is_split and split_axes(src, one.dim)[-len(axes) :] != list(axes):
        return None
    if two.is_split and split_axes(dst, two.dim)[-len(axes) :] != list(axes):
        return None
    return Step(axes, *actions, one.dim if one.is_split else -1, two.dim if two.is_split else -1, src, dst)


def _permute(src: NdSbp, dst: NdSbp, axes: tuple[int, int], mesh: Mesh) -> Step | None:
    one, two = axes
    if mesh.axes[one].size != mesh.axes[two].size or src[one] != dst[two] or src[two] != dst[one]:
        return None
    exchanged = {one: two, two: one}
    for sbp in {src[one], src[two]}:
        if sbp.is_split:
            moved = [exchanged.get(axis, axis) for axis in split_axes(src, sbp.dim)]
            if moved != sorted(moved):
                return None
    return Step(axes, "p2p", "p2p", -1, -1, src, dst)


def layouts_of(shape: tuple[int, ...], mesh: Mesh, differentiable: bool) -> tuple[NdSbp, ...]:
    """Every layout of a tensor in which all splits are even; without a gradient B and I are one (B)."""
    states: list[Sbp] = [S(dim) for dim, size in enumerate(shape) if size > 1]
    states += [B, I, P] if differentiable else [B, P]
    return tuple(layout for layout in product(states, repeat=mesh.ndim) if is_even(shape, layout, mesh))


def is_even(shape: tuple[int, ...], layout: NdSbp, mesh: Mesh) -> bool:
    """Every split is of a dim that there is, and divides it."""
    return all(sbp.dim < len(shape) for sbp in layout) and all(
        size % prod(mesh.axes[axis].size for axis in split_axes(layout, dim)) == 0 for dim, size in enumerate(shape)
    )


@lru_cache(maxsize=256)
def steps_among(layouts: tuple[NdSbp, ...], mesh: Mesh) -> tuple[tuple[int, int, Step], ...]:
    """Every primitive step between two of these layouts, as (source index, destination index, step)."""
    index = {layout: at for at, layout in enumerate(layouts)}
    states = {sbp for layout in layouts for sbp in layout}
    found = []
    for layout, at in index.items():
        for target in _neighbours(layout, states, mesh):
            if target in index:
                step = step_between(layout, target, mesh)
                if step is not None:
                    found.append((at, index[target], step))
    return tuple(found)


def _neighbours(layout: NdSbp, states: set[Sbp], mesh: Mesh) -> set[NdSbp]:
    """Layouts that differ in axes of one state, or in two exchanged axes."""
    found = set()
    for state in set(layout):
        holders = [axis for axis, sbp in enumerate(layout) if sbp == state]
        for count in range(1, len(holders) + 1):
            for axes in combinations(holders, count):
                for target in states - {state}:
                    found.add(tuple(target if axis in axes else sbp for axis, sbp in enumerate(layout)))
    for one, two in combinations(range(mesh.ndim), 2):
        if layout[one] != layout[two]:
            swapped = list(layout)
            swapped[one], swapped[two] = layout[two], layout[one]
            found.add(tuple(swapped))
    return found


def split_factor(layout: NdSbp, mesh: Mesh) -> int:
    """In how many parts the tensor is split over the whole mesh."""
    return prod(axis.size for axis, sbp in zip(mesh.axes, layout, strict=True) if sbp.is_split)


def message_bytes(step: Step, num_bytes: int, mesh: Mesh) -> int:
    """n of the step for a logical tensor of ``num_bytes``: the larger of the two local tensors."""
    return num_bytes // min(split_factor(step.src, mesh), split_factor(step.dst, mesh))
