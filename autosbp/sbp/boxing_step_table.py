"""All primitive boxing steps among the layouts with the same states, as arrays; shared by boxing tables.

Layouts are all combinations of the states, except those that mix reductions. Layouts with partial maxima or minima come
after those without, and layouts that nest in another order than the mesh's come last. Which steps exist depends only on
the states and on which mesh axes have equal sizes, so one table serves all shapes and nearly all meshes; a boxing table
adds the costs of its shape. ``sbp.boxing.steps_among`` is the definition; here each step is applied to all layouts at
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import combinations, permutations, product

import numpy as np
from numpy.typing import NDArray

from autosbp.sbp.boxing import ACTIONS, EXTREMA, BoxingStep
from autosbp.sbp.layout import NdSbp, Sbp
from autosbp.sbp.mesh import Mesh
from autosbp.utils.arrays import unique_ints

Ints = NDArray[np.int64]
PERMUTE = ("p2p", "p2p")


@dataclass(frozen=True)
class StepTable:
    """Layouts of a set of states, and the steps among them.

    The first ``num_plain`` of ``layouts`` nest in mesh order; the first ``num_sums`` of these have no partial maxima or
    minima. ``numbers[i, axis]`` indexes ``states``: the state of layout i on that axis. Step i leads from layout
    ``source[i]`` to ``target[i]`` and costs the same as ``kinds[kind[i]]``, which represents all steps with equal
    actions, axes and local copies (these depend on whether a split dim is dim 0).
    """

    states: tuple[Sbp, ...]
    layouts: tuple[NdSbp, ...]
    numbers: Ints
    num_sums: int
    num_plain: int
    source: Ints
    target: Ints
    kind: Ints
    kinds: tuple[BoxingStep, ...]
    _factors: dict[tuple[int, ...], Ints] = field(default_factory=dict)
    _even: dict[bytes, EvenSteps] = field(default_factory=dict)

    def factors(self, mesh_shape: tuple[int, ...]) -> Ints:
        """Number of parts into which each layout splits each dim; shape (layouts, dims)."""
        if mesh_shape not in self._factors:
            dims = np.array([sbp.dim for sbp in self.states], dtype=np.int64)[self.numbers]
            found = np.ones((len(self.layouts), 1 + int(dims.max(initial=-1))), dtype=np.int64)
            for axis, size in enumerate(mesh_shape):
                split = np.flatnonzero(dims[:, axis] >= 0)
                found[split, dims[split, axis]] *= size
            self._factors[mesh_shape] = found
        return self._factors[mesh_shape]

    def even_steps(self, even: NDArray[np.bool_]) -> EvenSteps:
        """The layouts selected by the mask ``even`` (those that split a shape evenly), and the steps among them.

        Shapes with the same mask share the result.
        """
        key = even.tobytes()
        if key not in self._even:
            place = np.cumsum(even) - 1
            keep = np.flatnonzero(even[self.source] & even[self.target])
            self._even[key] = EvenSteps(
                self, np.flatnonzero(even), int(even[: self.num_plain].sum()), int(even[: self.num_sums].sum()),
                keep, place[self.source[keep]], place[self.target[keep]],
            )  # fmt: skip
        return self._even[key]


@dataclass(frozen=True)
class EvenSteps:
    """Some layouts (``chosen``) of a ``StepTable``, and the steps ``keep`` among them.

    The ``num_plain`` layouts in mesh order, ``layouts``, come first among the ``stops``; ``index`` maps each to its
    place. Steps lead from ``source`` to ``target``, both places among the stops.
    """

    table: StepTable
    chosen: Ints
    num_plain: int
    num_sums: int
    keep: Ints
    source: Ints
    target: Ints

    @cached_property
    def all_layouts(self) -> tuple[NdSbp, ...]:
        return tuple(self.table.layouts[at] for at in self.chosen.tolist())

    @cached_property
    def layouts(self) -> tuple[NdSbp, ...]:
        return self.all_layouts[: self.num_plain]

    @cached_property
    def index(self) -> Mapping[NdSbp, int]:
        return {layout: at for at, layout in enumerate(self.layouts)}

    @cached_property
    def by_target(self) -> tuple[Ints, Ints, Ints]:
        """Places of steps sorted by target; the distinct targets; and where each target's steps begin."""
        order = np.argsort(self.target, kind="stable")
        ends, starts = np.unique(self.target[order], return_index=True)
        return order, ends, starts

    @cached_property
    def steps_by_ordinal(self) -> tuple[tuple[Ints, Ints], ...]:
        """Targets with the place of the first step into each; then those with a second one; and so on."""
        order, ends, starts = self.by_target
        counts = np.diff(starts, append=len(order))
        rank = np.arange(len(order)) - np.repeat(starts, counts)
        targets = np.repeat(ends, counts)
        most = int(counts.max(initial=0))
        return tuple((targets[rank == at], order[rank == at]) for at in range(most))

    @cached_property
    def lookup(self) -> Ints:
        """Place of the even layout with given state numbers on its axes, -1 if there is none.

        The key is the number whose digits are the state numbers, the last axis's the highest.
        """
        base, numbers = len(self.table.states), self.table.numbers[self.chosen[: self.num_plain]]
        found = np.full(base ** numbers.shape[1], -1, dtype=np.int64)
        found[numbers @ (base ** np.arange(numbers.shape[1], dtype=np.int64))] = np.arange(self.num_plain)
        return found


def step_table(states: tuple[Sbp, ...], mesh: Mesh) -> StepTable:
    """The steps among all layouts of these states on ``mesh``."""
    order: dict[int, int] = {}
    pattern = tuple(order.setdefault(axis.size, len(order)) for axis in mesh.axes)
    return _step_table(states, pattern)


@lru_cache(maxsize=256)
def _step_table(states: tuple[Sbp, ...], pattern: tuple[int, ...]) -> StepTable:
    skeleton = _skeleton(tuple((sbp.kind, sbp.reduction, sbp.dim == 0) for sbp in states), pattern)
    numbers, places = skeleton.numbers, skeleton.places
    shown = _written_places(numbers, places, np.array([sbp.is_split for sbp in states], dtype=bool))
    named = {(at, -1): sbp for at, sbp in enumerate(states)}
    named |= {
        (at, place): Sbp("S", sbp.dim, place=place)
        for at, sbp in enumerate(states) if sbp.is_split for place in range(len(pattern))
    }  # fmt: skip
    layouts = tuple(
        tuple(map(named.__getitem__, zip(row, nest, strict=True)))
        for row, nest in zip(numbers.tolist(), shown.tolist(), strict=True)
    )
    kinds = []
    for at, (axes, actions) in zip(skeleton.first.tolist(), skeleton.kinds, strict=True):
        src, dst = layouts[skeleton.source[at]], layouts[skeleton.target[at]]
        one, two = (-1, -1) if actions == PERMUTE else (src[axes[0]].dim, dst[axes[0]].dim)
        kinds.append(BoxingStep(axes, *actions, one, two, src, dst))
    return StepTable(
        states, layouts, numbers, skeleton.num_sums, skeleton.num_plain,
        skeleton.source, skeleton.target, skeleton.kind, tuple(kinds),
    )  # fmt: skip


def _written_places(numbers: Ints, places: Ints, split: NDArray[np.bool_]) -> Ints:
    """Places in nests as layouts write them: -1 where a dim nests in mesh order, or the axis is not ``split``."""
    shown = places.copy()
    for axis in range(numbers.shape[1]):
        same = numbers[:, axis, None] == numbers
        ordered = (~same | (places == np.cumsum(same, axis=1) - 1)).all(axis=1)
        shown[ordered | ~split[numbers[:, axis]], axis] = -1
    return shown


@dataclass(frozen=True)
class _Skeleton:
    """The arrays of ``StepTable`` with dims unnamed, except whether each is dim 0.

    ``places`` are places of axes in the nest of their dim, 0 where they split none. ``kinds`` are axes and actions;
    ``first`` is one step of each kind.
    """

    numbers: Ints
    places: Ints
    num_sums: int
    num_plain: int
    source: Ints
    target: Ints
    kind: Ints
    kinds: tuple[tuple[tuple[int, ...], tuple[str, str]], ...]
    first: Ints


@lru_cache(maxsize=128)
def _skeleton(states: tuple[tuple[str, str, bool], ...], pattern: tuple[int, ...]) -> _Skeleton:
    numbers, places, num_sums, num_plain = _layouts(states, len(pattern))
    found = _StepCollector(states, numbers, places)
    for count in range(1, len(pattern) + 1):
        for axes in combinations(range(len(pattern)), count):
            for target in range(len(states)):
                found.uniform(axes, target)
    for one, two in combinations(range(len(pattern)), 2):
        found.permutes(one, two, equal=pattern[one] == pattern[two])
    return found.skeleton(num_sums, num_plain)


def _layouts(states: tuple[tuple[str, str, bool], ...], ndim: int) -> tuple[Ints, Ints, int, int]:
    """State numbers and places of all layouts, how many have sums only, and how many nest in mesh order."""
    every = np.array(list(product(range(len(states)), repeat=ndim)), dtype=np.int64).reshape(len(states) ** ndim, ndim)
    kinds = np.array([[state[:2] == ("P", name) for state in states] for name in ("sum", "max", "min")], dtype=bool)
    reduced: NDArray[np.bool_] = np.logical_or.reduce(kinds[:, every], axis=2)
    single = reduced.sum(axis=0) <= 1
    every, extreme = every[single], (reduced[1] | reduced[2])[single]
    plain = np.concatenate([every[~extreme], every[extreme]])
    split = np.array([state[0] == "S" for state in states], dtype=bool)
    mesh_order = np.zeros(plain.shape, dtype=np.int64)
    for axis in range(1, ndim):
        mesh_order[:, axis] = (plain[:, :axis] == plain[:, axis, None]).sum(axis=1)
    mesh_order[~split[plain]] = 0
    numbers, places = [plain], [mesh_order]
    for row in plain[(mesh_order > 0).any(axis=1)]:
        holders = [np.flatnonzero(row == state) for state in unique_ints(row) if split[state]]
        for orders in list(product(*(permutations(range(len(axes))) for axes in holders)))[1:]:
            placed = np.zeros(ndim, dtype=np.int64)
            for axes, order in zip(holders, orders, strict=True):
                placed[axes[list(order)]] = np.arange(len(axes))
            numbers.append(row[None])
            places.append(placed[None])
    return np.concatenate(numbers), np.concatenate(places), int((~extreme).sum()), len(plain)


class _StepCollector:
    """Collects the steps of a skeleton."""

    def __init__(self, states: tuple[tuple[str, str, bool], ...], numbers: Ints, places: Ints) -> None:
        self.states, self.numbers, self.places = states, numbers, places
        ndim = numbers.shape[1]
        self._weights = (len(states) * max(ndim, 1)) ** np.arange(ndim, dtype=np.int64)
        self._index = np.full(int((len(states) * max(ndim, 1)) ** ndim), -1, dtype=np.int64)
        self._index[self._codes(numbers, places)] = np.arange(len(numbers))
        self._counts = np.stack([(numbers == state).sum(axis=1) for state in range(len(states))], axis=1)
        self._steps: list[tuple[Ints, Ints, Ints]] = []
        self._kinds: dict[tuple[object, ...], int] = {}
        self._told: list[tuple[tuple[int, ...], tuple[str, str]]] = []

    def _codes(self, numbers: Ints, places: Ints) -> Ints:
        codes: Ints = (numbers * max(numbers.shape[1], 1) + places) @ self._weights
        return codes

    def _kind(self, axes: tuple[int, ...], actions: tuple[str, str], source_first: bool, target_first: bool) -> int:
        key = (axes, actions, source_first, target_first)
        if key not in self._kinds:
            self._kinds[key] = len(self._told)
            self._told.append((axes, actions))
        return self._kinds[key]

    def _add(self, rows: Ints, numbers: Ints, places: Ints, kinds: Ints) -> None:
        targets = self._index[self._codes(numbers, places)]
        there = targets >= 0
        self._steps.append((rows[there], targets[there], kinds[there]))

    def uniform(self, axes: tuple[int, ...], target: int) -> None:
        """Add the steps that change ``axes``, which share one state, to ``target``; an added split is innermost."""
        kind, reduction, target_first = self.states[target]
        known = np.full(len(self.states), -1, dtype=np.int64)
        for at, (name, own, first) in enumerate(self.states):
            way = next((each for partial, each in ((name, own), (kind, reduction)) if partial == "P"), "sum")
            actions = (ACTIONS if way == "sum" else EXTREMA).get((name, kind))
            if actions is not None and at != target:
                known[at] = self._kind(axes, actions, first, target_first)
        lead = self.numbers[:, axes[0]]
        rows = np.flatnonzero((self.numbers[:, axes] == lead[:, None]).all(axis=1) & (known[lead] >= 0))
        source = lead[rows]
        # Splits are removed from the innermost axis outwards.
        inner = self._counts[rows, source][:, None] - len(axes) + np.arange(len(axes))
        split = np.array([state[0] == "S" for state in self.states])
        innermost = (self.places[rows][:, axes] == inner).all(axis=1) | ~split[source]
        rows, source = rows[innermost], source[innermost]
        numbers, places = self.numbers[rows], self.places[rows]
        numbers[:, axes] = target
        places[:, axes] = self._counts[rows, target][:, None] + np.arange(len(axes)) if split[target] else 0
        self._add(rows, numbers, places, known[source])

    def permutes(self, one: int, two: int, *, equal: bool) -> None:
        """Add the permutes of two axes: all of them if sizes are ``equal``, else of neighbours in one nest."""
        numbers, places = self.numbers, self.places
        if equal:
            rows = np.flatnonzero((numbers[:, one] != numbers[:, two]) | (places[:, one] != places[:, two]))
            groups = [(rows, (one, two))]
        else:
            ahead = np.where(numbers[:, one] == numbers[:, two], places[:, two] - places[:, one], 0)
            groups = [(np.flatnonzero(ahead == 1), (one, two)), (np.flatnonzero(ahead == -1), (two, one))]
        for rows, axes in groups:
            exchanged = [*range(numbers.shape[1])]
            exchanged[one], exchanged[two] = two, one
            kinds = np.full(len(rows), self._kind(axes, PERMUTE, False, False), dtype=np.int64)
            self._add(rows, numbers[rows][:, exchanged], places[rows][:, exchanged], kinds)

    def skeleton(self, num_sums: int, num_plain: int) -> _Skeleton:
        nothing = np.zeros(0, dtype=np.int64)
        source, target, kind = (
            np.concatenate([nothing, *(step[column] for step in self._steps)]) for column in range(3)
        )
        met, first, kind = np.unique(kind, return_index=True, return_inverse=True)
        kinds = tuple(self._told[at] for at in met)
        return _Skeleton(
            self.numbers, self.places, num_sums, num_plain, source, target, kind.astype(np.int64), kinds, first
        )
