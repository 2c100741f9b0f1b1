"""Boxing: the primitive steps from one layout of a tensor to another, and their derived backward (DESIGN section 6).

One step changes a set of mesh axes that share one state to one other state, or permutes whole local tensors among ranks
(``permute``). What the step does forward and backward follows from the two states alone:

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

    Partial maxima and minima, which have no gradient:
    P -> B        all_reduce                        the local tensor
    P -> S        reduce_scatter                    the unscattered tensor
    B -> P        -

``pad`` writes zeros around the slice, ``mask`` keeps the value on the first rank of the group and zeros elsewhere.

Only the innermost axes of a split dim can be gathered, exchanged or added; others first change places with inner ones,
by a permute. So layouts between the steps may nest in another order than the mesh's (``placement``). A permute exchanges
two axes of equal size in all that they do, or two neighbours in the nest of one dim, of any sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations, product
from math import prod

from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import B, I, NdSbp, P, S, Sbp, nested, split_axes

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

EXTREMA: Mapping[tuple[str, str], tuple[str, str]] = {
    ("P", "B"): ("all_reduce", "none"),
    ("P", "S"): ("reduce_scatter", "none"),
    ("B", "P"): ("none", "none"),
}
"""Actions where P is a partial maximum or minimum."""
PMAX, PMIN = Sbp("P", reduction="max"), Sbp("P", reduction="min")


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive step over ``axes``. ``forward`` and ``backward`` name the actions of the table above; ``src_dim`` and
    ``dst_dim`` are the split dims where a side is S, else -1. Axes are in mesh order; those of a permute of unequal sizes
    are the outer one before it, then the inner one."""

    axes: tuple[int, ...]
    forward: str
    backward: str
    src_dim: int
    dst_dim: int
    src: NdSbp
    dst: NdSbp

    @property
    def backward_axes(self) -> tuple[int, ...]:
        """Axes of the backward action: a permute goes the other way."""
        return self.axes[::-1] if self.backward == "p2p" else self.axes

    @property
    def reduction(self) -> str:
        """What joins partial values."""
        return _reduction(self.src[self.axes[0]], self.dst[self.axes[0]])


@lru_cache(maxsize=16_384)
def step_between(src: NdSbp, dst: NdSbp, mesh: Mesh) -> Step | None:
    """The primitive step from ``src`` to ``dst``, or None when there is none (sizes of dims are not checked)."""
    if src == dst or not (is_one_reduction(src) and is_one_reduction(dst)):
        return None
    changed = [axis for axis, (one, two) in enumerate(zip(src, dst, strict=True)) if _state(one) != _state(two)]
    if len({_state(src[axis]) for axis in changed}) == 1 == len({_state(dst[axis]) for axis in changed}):
        step = _uniform(src, tuple(changed), _state(dst[changed[0]]))
        return step if step is not None and step.dst == dst else None
    for one, two in combinations(range(len(src)), 2):
        for step in _permutes(src, one, two, mesh):
            if step.dst == dst:
                return step
    return None


def _state(sbp: Sbp) -> Sbp:
    """Without the place in a nest."""
    return sbp if sbp.place < 0 else S(sbp.dim)


def is_one_reduction(layout: NdSbp) -> bool:
    """Partial values on all axes are joined in one way: sums of maxima are not maxima of sums."""
    return len({sbp.reduction for sbp in layout if sbp.is_partial}) <= 1


def _reduction(*states: Sbp) -> str:
    return next((sbp.reduction for sbp in states if sbp.is_partial), "sum")


def _uniform(src: NdSbp, axes: tuple[int, ...], state: Sbp) -> Step | None:
    """``axes``, which share one state in ``src``, all take another; an added split is innermost."""
    one = src[axes[0]]
    actions = (ACTIONS if _reduction(one, state) == "sum" else EXTREMA).get((one.kind, state.kind))
    if actions is None:
        return None
    nests: dict[int, Sequence[int]] = {}
    if one.is_split:
        inside = split_axes(src, one.dim)
        if inside[-len(axes) :] != list(axes):
            return None
        nests[one.dim] = inside[: -len(axes)]
    if state.is_split:
        nests[state.dim] = [*split_axes(src, state.dim), *axes]
    dst = nested([state if axis in axes else sbp for axis, sbp in enumerate(src)], nests)
    return Step(axes, *actions, one.dim if one.is_split else -1, state.dim if state.is_split else -1, src, dst)


def _permutes(src: NdSbp, one: int, two: int, mesh: Mesh) -> Iterator[Step]:
    """The permute that exchanges two axes, if there is one."""
    exchanged = {one: two, two: one}
    if mesh.axes[one].size == mesh.axes[two].size:
        layout = list(src)
        layout[one], layout[two] = src[two], src[one]
        nests = {
            sbp.dim: [exchanged.get(axis, axis) for axis in split_axes(src, sbp.dim)]
            for sbp in (src[one], src[two])
            if sbp.is_split
        }
        dst = nested(layout, nests)
        if dst != src:
            yield Step((one, two), "p2p", "p2p", -1, -1, src, dst)
    elif src[one].is_split and _state(src[one]) == _state(src[two]):
        nest = split_axes(src, src[one].dim)
        outer = min(nest.index(one), nest.index(two))
        if nest[outer + 1] in exchanged:
            axes = (nest[outer], nest[outer + 1])
            nest[outer : outer + 2] = axes[::-1]
            yield Step(axes, "p2p", "p2p", -1, -1, src, nested(src, {src[one].dim: nest}))


def permuted_ranks(mesh: Mesh, axes: tuple[int, ...], rank: int) -> tuple[int, int]:
    """In a permute over ``axes`` forward: to which rank this one sends, and from which it receives.

    The number that the two coordinates make with the first axis outermost is, at the receiver, the number that they
    make with the second outermost. Backward sends the other way.
    """
    one, two = axes
    sizes = mesh.axes[one].size, mesh.axes[two].size
    place = list(mesh.coordinate(rank))
    at = place[one] * sizes[1] + place[two]
    to, source = list(place), list(place)
    to[two], to[one] = divmod(at, sizes[0])
    source[one], source[two] = divmod(place[two] * sizes[0] + place[one], sizes[1])
    return mesh.rank(to), mesh.rank(source)


def permute_peers(mesh: Mesh, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The rank and those that it exchanges with in a permute over ``axes``, forward or backward; one if it is idle."""
    return tuple(sorted({rank, *permuted_ranks(mesh, axes, rank)}))


def layouts_of(shape: tuple[int, ...], mesh: Mesh, differentiable: bool) -> tuple[NdSbp, ...]:
    """Every layout of a tensor in which all splits are even; without a gradient B and I are one (B). Partial values are
    sums."""
    states: list[Sbp] = [S(dim) for dim, size in enumerate(shape) if size > 1]
    states += [B, I, P] if differentiable else [B, P]
    return tuple(layout for layout in product(states, repeat=mesh.ndim) if is_even(shape, layout, mesh))


def nestings(layout: NdSbp) -> Iterator[NdSbp]:
    """A layout in mesh order, then the same splits nested in every other order."""
    dims = sorted({sbp.dim for sbp in layout if sbp.is_split})
    for orders in product(*(permutations(split_axes(layout, dim)) for dim in dims)):
        yield nested(layout, dict(zip(dims, orders, strict=True)))


@lru_cache(maxsize=16_384)
def is_even(shape: tuple[int, ...], layout: NdSbp, mesh: Mesh) -> bool:
    """Every split is of a dim that there is, and divides it."""
    return all(sbp.dim < len(shape) for sbp in layout) and all(
        size % prod(mesh.axes[axis].size for axis in split_axes(layout, dim)) == 0 for dim, size in enumerate(shape)
    )


@lru_cache(maxsize=256)
def steps_among(layouts: tuple[NdSbp, ...], mesh: Mesh) -> tuple[tuple[int, int, Step], ...]:
    """Every primitive step between two of these layouts, as (source index, destination index, step)."""
    index = {layout: at for at, layout in enumerate(layouts)}
    states = tuple(dict.fromkeys(_state(sbp) for layout in layouts for sbp in layout))
    found = []
    for layout, at in index.items():
        for step in _steps_from(layout, states, mesh):
            if step.dst in index:
                found.append((at, index[step.dst], step))
    return tuple(found)


def _steps_from(layout: NdSbp, states: Sequence[Sbp], mesh: Mesh) -> Iterator[Step]:
    """Changes of axes of one state, then permutes."""
    for state in dict.fromkeys(map(_state, layout)):
        holders = [axis for axis, sbp in enumerate(layout) if _state(sbp) == state]
        for count in range(1, len(holders) + 1):
            for axes in combinations(holders, count):
                for target in states:
                    step = _uniform(layout, axes, target) if target != state else None
                    if step is not None:
                        yield step
    for one, two in combinations(range(mesh.ndim), 2):
        yield from _permutes(layout, one, two, mesh)


@lru_cache(maxsize=16_384)
def split_factor(layout: NdSbp, mesh: Mesh) -> int:
    """In how many parts the tensor is split over the whole mesh."""
    return prod(axis.size for axis, sbp in zip(mesh.axes, layout, strict=True) if sbp.is_split)


def message_bytes(step: Step, num_bytes: int, mesh: Mesh) -> int:
    """n of the step for a logical tensor of ``num_bytes``: the larger of the two local tensors."""
    return num_bytes // min(split_factor(step.src, mesh), split_factor(step.dst, mesh))
