"""All primitive steps among the layouts of tensors with the same states, as arrays: the skeleton of every boxing table.

Layouts are all combinations of the states, but for those that join partial values in two ways; partial maxima and minima
come last, and then layouts in which dims nest in another order than the mesh's. Which steps exist depends on the states
and on which mesh axes have equal sizes only, so one table serves all shapes and nearly all meshes; a boxing table adds
the costs of its shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, product

import numpy as np
from numpy.typing import NDArray

from autosbp.sbp.boxing import Step, is_one_reduction, nestings, steps_among
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.sbp.placement import NdSbp, Sbp


@dataclass(frozen=True)
class StepTable:
    """The first ``num_plain`` of ``layouts`` nest in mesh order, the first ``num_sums`` of these have no partial maxima and
    minima. Step i leads from ``source[i]`` to ``target[i]`` and costs
    like ``kinds[kind[i]]``, one representative of steps with equal actions, axes and copies."""

    layouts: tuple[NdSbp, ...]
    num_sums: int
    num_plain: int
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    kind: NDArray[np.int64]
    kinds: tuple[Step, ...]
    _factors: dict[tuple[int, ...], NDArray[np.int64]] = field(default_factory=dict)
    _even: dict[bytes, EvenSteps] = field(default_factory=dict)

    def factors(self, mesh_shape: tuple[int, ...]) -> NDArray[np.int64]:
        """In how many parts each layout splits each dim; shape (layouts, dims)."""
        if mesh_shape not in self._factors:
            dims = 1 + max((sbp.dim for layout in self.layouts for sbp in layout), default=-1)
            found = np.ones((len(self.layouts), dims), dtype=np.int64)
            for row, layout in zip(found, self.layouts, strict=True):
                for size, sbp in zip(mesh_shape, layout, strict=True):
                    if sbp.is_split:
                        row[sbp.dim] *= size
            self._factors[mesh_shape] = found
        return self._factors[mesh_shape]

    def even(self, even: NDArray[np.bool_]) -> EvenSteps:
        """The layouts that split a shape evenly, and the steps among them; shapes that agree in which share it."""
        key = even.tobytes()
        if key not in self._even:
            place = np.cumsum(even) - 1
            keep = np.flatnonzero(even[self.source] & even[self.target])
            stops = tuple(self.layouts[at] for at in np.flatnonzero(even))
            layouts = stops[: int(even[: self.num_plain].sum())]
            self._even[key] = EvenSteps(
                stops, layouts, {layout: at for at, layout in enumerate(layouts)}, int(even[: self.num_sums].sum()),
                keep, place[self.source[keep]], place[self.target[keep]],
            )  # fmt: skip
        return self._even[key]


@dataclass(frozen=True)
class EvenSteps:
    """Some layouts of a ``StepTable``: those in mesh order, ``layouts``, come first among the ``stops``; ``index`` is their
    place. Its steps ``keep`` lead from ``source`` to ``target`` among the stops."""

    stops: tuple[NdSbp, ...]
    layouts: tuple[NdSbp, ...]
    index: Mapping[NdSbp, int]
    num_sums: int
    keep: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    _lookups: dict[tuple[Sbp, ...], NDArray[np.int64]] = field(default_factory=dict)

    def lookup(self, states: tuple[Sbp, ...]) -> NDArray[np.int64]:
        """The place of the layout with these states on its axes, by their numbers as digits, the last axis's the highest;
        -1 where it is not even."""
        if states not in self._lookups:
            number = {state: at for at, state in enumerate(states)}
            ndim = len(self.stops[0])
            found = np.full(len(states) ** ndim, -1, dtype=np.int64)
            for layout, at in self.index.items():
                found[sum(number[sbp] * len(states) ** axis for axis, sbp in enumerate(layout))] = at
            self._lookups[states] = found
        return self._lookups[states]


def step_table(states: tuple[Sbp, ...], mesh: Mesh) -> StepTable:
    """The steps among all layouts of these states on ``mesh``."""
    order: dict[int, int] = {}
    pattern = tuple(order.setdefault(axis.size, len(order)) for axis in mesh.axes)
    return _step_table(states, pattern)


@lru_cache(maxsize=128)
def _step_table(states: tuple[Sbp, ...], pattern: tuple[int, ...]) -> StepTable:
    sizes = tuple(2 + size for size in pattern)
    mesh = Mesh(tuple(Axis(str(at), size, 0) for at, size in enumerate(sizes)), (int(np.prod(sizes, dtype=np.int64)),))
    every = [layout for layout in product(states, repeat=mesh.ndim) if is_one_reduction(layout)]
    sums = [layout for layout in every if all(sbp.reduction == "sum" for sbp in layout)]
    plain = (*sums, *(layout for layout in every if any(sbp.reduction != "sum" for sbp in layout)))
    layouts = (*plain, *(nesting for layout in plain for nesting in islice(nestings(layout), 1, None)))
    kinds: dict[tuple[object, ...], int] = {}
    representatives: list[Step] = []
    source, target, kind = [], [], []
    for one, two, step in steps_among(layouts, mesh):
        key = (step.forward, step.backward, step.axes, step.src_dim == 0, step.dst_dim == 0)
        if key not in kinds:
            kinds[key] = len(representatives)
            representatives.append(step)
        source.append(one)
        target.append(two)
        kind.append(kinds[key])
    columns = [np.array(column, dtype=np.int64) for column in (source, target, kind)]
    return StepTable(layouts, len(sums), len(plain), columns[0], columns[1], columns[2], tuple(representatives))
