"""Storage apart from use: parameters split over the ranks that would all hold them (ZeRO, Rajbhandari et al. 2020).

In terms of layouts ZeRO is an annotation (OneFlow section 6.4): a parameter that is used B is stored S. Its gradient is
then reduce-scattered instead of all-reduced, and each rank keeps and steps only its part of the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autosbp.graph.ir import LogicalGraph, Parameter
from autosbp.plan import BoxingKey, Strategy
from autosbp.sbp.boxing import Step, is_even, step_between
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import B, NdSbp, S, Sbp


def store_split(graph: LogicalGraph, strategy: Strategy, gather: str = "step") -> Strategy:
    """``strategy`` with every trained parameter that is stored B on some axes split over these, where a dim divides evenly.

    ``gather`` is when the parameters are brought together: ``step`` for ZeRO-2, ``use`` for ZeRO-3 (``Strategy``). What is
    stored whole because nothing divides it stays as it was.
    """
    parameters, paths = dict(strategy.parameters), dict(strategy.paths)
    read = _read(graph, strategy)
    for leaf in graph.trained:
        used = strategy.parameters[leaf.name]
        stored = split_storage(leaf, used, strategy.mesh)
        if stored != used:
            parameters[leaf.name] = stored
            for wanted in read.get(leaf.name, {used}):
                known: BoxingKey = (leaf.meta.sizes, leaf.meta.num_bytes, leaf.meta.is_float, used, wanted)
                route = (used,) if wanted == used else strategy.paths[known]
                paths[*known[:3], stored, wanted] = (stored, *route)
    return replace(strategy, parameters=parameters, paths=paths, gather=gather)


def _read(graph: LogicalGraph, strategy: Strategy) -> dict[str, set[NdSbp]]:
    """The layouts in which ops read each parameter: a bias under a partial sum is stored whole and read P."""
    found: dict[str, set[NdSbp]] = {}
    for node in graph.nodes:
        if node.name in strategy.signatures:
            for ref, layout in zip(node.refs(), strategy.signatures[node.name].ins, strict=True):
                if ref.name in strategy.parameters:
                    found.setdefault(ref.name, set()).add(layout)
    return found


def split_storage(leaf: Parameter, used: NdSbp, mesh: Mesh) -> NdSbp:
    """The stored layout that one all-gather takes to ``used``; ``used`` itself where there is none."""
    dim = split_dim(leaf.meta.sizes, used, mesh)
    return used if dim is None else tuple(S(dim) if sbp == B else sbp for sbp in used)


def split_dim(shape: tuple[int, ...], used: NdSbp, mesh: Mesh) -> int | None:
    """The dim that storage splits over the axes on which a parameter of this shape is used B; None where no dim does."""
    step = gathering(shape, used, mesh)
    return None if step is None else step.src[step.axes[0]].dim


@lru_cache(maxsize=1 << 16)
def gathering(shape: tuple[int, ...], used: NdSbp, mesh: Mesh) -> Step | None:
    """The all-gather that brings a parameter from storage, split over the axes on which it is used B, to its use."""
    if B in used:
        for dim in range(len(shape)):
            stored = tuple(S(dim) if sbp == B else sbp for sbp in used)
            step = step_between(stored, used, mesh)
            if step is not None and step.forward == "all_gather" and is_even(shape, stored, mesh):
                return step
    return None


def gathered_parts(
    shape: tuple[int, ...], rows: NDArray[np.int64], states: Sequence[Sbp], mesh: Mesh
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """``gathering`` of many layouts in mesh order at once: into how many parts storage splits what ranks hold alike, 1 where it
    does not or a layout is P, and the dim that it splits then, else -1.

    Args:
        rows: ``states[rows[i, axis]]`` is layout i on an axis.
    """
    sizes = np.array([axis.size for axis in mesh.axes], dtype=np.int64)
    whole, partial = (np.array([sbp.kind == kind for sbp in states], dtype=bool)[rows] for kind in "BP")
    dims = np.array([sbp.dim if sbp.is_split else -1 for sbp in states], dtype=np.int64)[rows]
    parts = np.where(whole, sizes, 1).prod(axis=1)
    split = [np.where(dims == dim, sizes, 1).prod(axis=1) for dim in range(len(shape))]
    odd = np.array([size % by != 0 for size, by in zip(shape, split, strict=True)]).reshape(len(shape), len(rows))
    open_ = whole.any(axis=1) & ~partial.any(axis=1) & (dims < len(shape)).all(axis=1)
    axes, found = np.arange(mesh.ndim), np.full(len(rows), -1)
    first = np.where(whole, axes, mesh.ndim).min(axis=1, initial=mesh.ndim)
    for dim, size in enumerate(shape):
        # What is gathered was split last: axes that stay split on this dim lie further out.
        inside = np.where(dims == dim, axes, -1).max(axis=1, initial=-1) < first
        even = (size % (split[dim] * parts) == 0) & ~np.delete(odd, dim, axis=0).any(axis=0)
        found[open_ & inside & even & (found < 0)] = dim
    return np.where(found >= 0, parts, 1).astype(np.float64), found
