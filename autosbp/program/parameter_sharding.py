"""Sharded parameter storage: parameters split over the ranks that use whole copies (ZeRO, Rajbhandari et al. 2020).

In terms of layouts ZeRO is an annotation (OneFlow section 6.4): a parameter that is used B is stored S. Its gradient is
then reduce-scattered instead of all-reduced, and each rank keeps and updates only its part of the optimizer state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autosbp.graph.ir import LogicalGraph, Parameter
from autosbp.plan.plan import BoxingKey, Strategy
from autosbp.sbp.boxing import BoxingStep, is_even, step_between
from autosbp.sbp.layout import B, NdSbp, S, Sbp
from autosbp.sbp.mesh import Mesh


def shard_parameters(graph: LogicalGraph, strategy: Strategy, gather: str = "step") -> Strategy:
    """Split the storage of trained parameters over the axes on which they are stored B, where a dim divides evenly.

    Args:
        gather: when parameters are all-gathered: ``step`` for ZeRO-2, ``use`` for ZeRO-3 (see ``Strategy``).

    Returns:
        The strategy with new parameter layouts and paths; parameters that nothing divides stay whole.
    """
    parameters, paths = dict(strategy.parameters), dict(strategy.paths)
    read = _read(graph, strategy)
    for leaf in graph.trained:
        used = strategy.parameters[leaf.name]
        stored = sharded_layout(leaf, used, strategy.mesh)
        if stored != used:
            parameters[leaf.name] = stored
            for wanted in read.get(leaf.name, {used}):
                known: BoxingKey = (leaf.meta.sizes, leaf.meta.num_bytes, leaf.meta.is_float, used, wanted)
                route = (used,) if wanted == used else strategy.paths[known]
                paths[*known[:3], stored, wanted] = (stored, *route)
    return replace(strategy, parameters=parameters, paths=paths, gather=gather)


def _read(graph: LogicalGraph, strategy: Strategy) -> dict[str, set[NdSbp]]:
    """Layouts in which ops read each parameter; a bias under a partial sum is stored whole and read P."""
    found: dict[str, set[NdSbp]] = {}
    for node in graph.nodes:
        if node.name in strategy.signatures:
            for ref, layout in zip(node.refs(), strategy.signatures[node.name].ins, strict=True):
                if ref.name in strategy.parameters:
                    found.setdefault(ref.name, set()).add(layout)
    return found


def sharded_layout(leaf: Parameter, used: NdSbp, mesh: Mesh) -> NdSbp:
    """The stored layout from which one all-gather leads to ``used``; ``used`` itself if there is none."""
    dim = shard_dim(leaf.meta.sizes, used, mesh)
    return used if dim is None else tuple(S(dim) if sbp == B else sbp for sbp in used)


def shard_dim(shape: tuple[int, ...], used: NdSbp, mesh: Mesh) -> int | None:
    """The dim that storage splits over the axes on which a parameter of this shape is used B; None if none divides."""
    step = gather_step(shape, used, mesh)
    return None if step is None else step.src[step.axes[0]].dim


@lru_cache(maxsize=1 << 16)
def gather_step(shape: tuple[int, ...], used: NdSbp, mesh: Mesh) -> BoxingStep | None:
    """The all-gather from storage split over the axes on which a parameter is used B to its use, if there is one."""
    if B in used:
        for dim in range(len(shape)):
            stored = tuple(S(dim) if sbp == B else sbp for sbp in used)
            step = step_between(stored, used, mesh)
            if step is not None and step.forward == "all_gather" and is_even(shape, stored, mesh):
                return step
    return None


def sharding_factors(
    shape: tuple[int, ...], rows: NDArray[np.int64], states: Sequence[Sbp], mesh: Mesh
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """``gather_step`` of many layouts in mesh order at once.

    Args:
        rows: ``states[rows[i, axis]]`` is the state of layout i on an axis.

    Returns:
        The number of parts into which storage splits what ranks hold alike (1 if it does not, or for a layout with P),
        and the dim that it splits, else -1.
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
        # Gathered axes were split last (innermost): axes that stay split on this dim must be outer ones.
        inside = np.where(dims == dim, axes, -1).max(axis=1, initial=-1) < first
        even = (size % (split[dim] * parts) == 0) & ~np.delete(odd, dim, axis=0).any(axis=0)
        found[open_ & inside & even & (found < 0)] = dim
    return np.where(found >= 0, parts, 1).astype(np.float64), found
