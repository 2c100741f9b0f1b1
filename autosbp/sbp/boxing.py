"""Boxing (resharding): primitive steps from one layout of a tensor to another, and their backward.

One step changes a set of mesh axes from one shared state to another, or permutes whole local tensors among ranks
(``permute``). The two states alone determine what the step does forward and backward:

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

``pad`` writes zeros around the slice; ``mask`` keeps the value on the first rank of the group and zeros elsewhere.

Only the innermost axes of a split dim can be gathered, exchanged or added; an outer axis first swaps places with an
inner one by a permute. Layouts between steps may therefore nest in another order than the mesh's (``sbp.layout``). A
permute swaps the states of two axes of equal size, or two adjacent axes, of any sizes, in the nest of one dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations, product
from math import prod

from autosbp.sbp.layout import B, I, NdSbp, P, S, Sbp, split_axes, with_nesting
from autosbp.sbp.mesh import Mesh

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
class BoxingStep:
    """One primitive step over ``axes``.

    ``forward`` and ``backward`` name actions of the table above; ``src_dim`` and ``dst_dim`` are the split dims where
    that side is S, else -1. Axes are in mesh order; a permute of unequal sizes lists the axis that is outer before it
    first.
    """

    axes: tuple[int, ...]
    forward: str
    backward: str
    src_dim: int
    dst_dim: int
    src: NdSbp
    dst: NdSbp

    @property
    def backward_axes(self) -> tuple[int, ...]:
        """Axes of the backward action; reversed for a permute, which runs in the opposite direction."""
        return self.axes[::-1] if self.backward == "p2p" else self.axes

    @property
    def reduction(self) -> str:
        """Reduction that combines the partial values: ``sum``, ``max`` or ``min``."""
        return _reduction(self.src[self.axes[0]], self.dst[self.axes[0]])


@lru_cache(maxsize=16_384)
def step_between(src: NdSbp, dst: NdSbp, mesh: Mesh) -> BoxingStep | None:
    """The primitive step from ``src`` to ``dst``, or None if there is none. Does not check the sizes of dims."""
    if src == dst or not (has_single_reduction(src) and has_single_reduction(dst)):
        return None
    changed = [axis for axis, (one, two) in enumerate(zip(src, dst, strict=True)) if _state(one) != _state(two)]
    if len({_state(src[axis]) for axis in changed}) == 1 == len({_state(dst[axis]) for axis in changed}):
        step = _uniform_step(src, tuple(changed), _state(dst[changed[0]]))
        return step if step is not None and step.dst == dst else None
    for one, two in combinations(range(len(src)), 2):
        for step in _permute_steps(src, one, two, mesh):
            if step.dst == dst:
                return step
    return None


def _state(sbp: Sbp) -> Sbp:
    """The state without its place in a nest."""
    return sbp if sbp.place < 0 else S(sbp.dim)


def has_single_reduction(layout: NdSbp) -> bool:
    """Whether all partial values have the same reduction; a sum of maxima is not a maximum of sums."""
    return len({sbp.reduction for sbp in layout if sbp.is_partial}) <= 1


def _reduction(*states: Sbp) -> str:
    return next((sbp.reduction for sbp in states if sbp.is_partial), "sum")


def _uniform_step(src: NdSbp, axes: tuple[int, ...], state: Sbp) -> BoxingStep | None:
    """The step that changes ``axes``, which share one state in ``src``, to ``state``; an added split is innermost."""
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
    dst = with_nesting([state if axis in axes else sbp for axis, sbp in enumerate(src)], nests)
    return BoxingStep(axes, *actions, one.dim if one.is_split else -1, state.dim if state.is_split else -1, src, dst)


def _permute_steps(src: NdSbp, one: int, two: int, mesh: Mesh) -> Iterator[BoxingStep]:
    """The permute that swaps two axes, if there is one."""
    exchanged = {one: two, two: one}
    if mesh.axes[one].size == mesh.axes[two].size:
        layout = list(src)
        layout[one], layout[two] = src[two], src[one]
        nests = {
            sbp.dim: [exchanged.get(axis, axis) for axis in split_axes(src, sbp.dim)]
            for sbp in (src[one], src[two])
            if sbp.is_split
        }
        dst = with_nesting(layout, nests)
        if dst != src:
            yield BoxingStep((one, two), "p2p", "p2p", -1, -1, src, dst)
    elif src[one].is_split and _state(src[one]) == _state(src[two]):
        nest = split_axes(src, src[one].dim)
        outer = min(nest.index(one), nest.index(two))
        if nest[outer + 1] in exchanged:
            axes = (nest[outer], nest[outer + 1])
            nest[outer : outer + 2] = axes[::-1]
            yield BoxingStep(axes, "p2p", "p2p", -1, -1, src, with_nesting(src, {src[one].dim: nest}))


def permuted_ranks(mesh: Mesh, axes: tuple[int, ...], rank: int) -> tuple[int, int]:
    """In the forward direction of a permute over ``axes``: the rank to send to, and the rank to receive from.

    Number the two coordinates with the first axis outermost at the sender, and with the second axis outermost at the
    receiver: the numbers are equal. Backward sends the opposite way.
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
    """Ranks that take part in this rank's exchange in a permute over ``axes``, itself included; alone if it is idle."""
    return tuple(sorted({rank, *permuted_ranks(mesh, axes, rank)}))


def layouts_of(shape: tuple[int, ...], mesh: Mesh, differentiable: bool) -> tuple[NdSbp, ...]:
    """Every layout of a tensor in which all splits are even.

    Without a gradient, B and I are the same (written B). Partial values are sums.
    """
    states: list[Sbp] = [S(dim) for dim, size in enumerate(shape) if size > 1]
    states += [B, I, P] if differentiable else [B, P]
    return tuple(layout for layout in product(states, repeat=mesh.ndim) if is_even(shape, layout, mesh))


def nesting_orders(layout: NdSbp) -> Iterator[NdSbp]:
    """The layout in mesh order, then the same splits nested in every other order."""
    dims = sorted({sbp.dim for sbp in layout if sbp.is_split})
    for orders in product(*(permutations(split_axes(layout, dim)) for dim in dims)):
        yield with_nesting(layout, dict(zip(dims, orders, strict=True)))


@lru_cache(maxsize=16_384)
def is_even(shape: tuple[int, ...], layout: NdSbp, mesh: Mesh) -> bool:
    """Whether every split is of an existing dim and divides its size."""
    return all(sbp.dim < len(shape) for sbp in layout) and all(
        size % prod(mesh.axes[axis].size for axis in split_axes(layout, dim)) == 0 for dim, size in enumerate(shape)
    )


@lru_cache(maxsize=256)
def steps_among(layouts: tuple[NdSbp, ...], mesh: Mesh) -> tuple[tuple[int, int, BoxingStep], ...]:
    """Every primitive step between two of these layouts, as (source index, destination index, step)."""
    index = {layout: at for at, layout in enumerate(layouts)}
    states = tuple(dict.fromkeys(_state(sbp) for layout in layouts for sbp in layout))
    found = []
    for layout, at in index.items():
        for step in _steps_from(layout, states, mesh):
            if step.dst in index:
                found.append((at, index[step.dst], step))
    return tuple(found)


def _steps_from(layout: NdSbp, states: Sequence[Sbp], mesh: Mesh) -> Iterator[BoxingStep]:
    """Steps that change axes of one state, then permutes."""
    for state in dict.fromkeys(map(_state, layout)):
        holders = [axis for axis, sbp in enumerate(layout) if _state(sbp) == state]
        for count in range(1, len(holders) + 1):
            for axes in combinations(holders, count):
                for target in states:
                    step = _uniform_step(layout, axes, target) if target != state else None
                    if step is not None:
                        yield step
    for one, two in combinations(range(mesh.ndim), 2):
        yield from _permute_steps(layout, one, two, mesh)


@lru_cache(maxsize=16_384)
def split_factor(layout: NdSbp, mesh: Mesh) -> int:
    """Number of parts into which the whole mesh splits the tensor."""
    return prod(axis.size for axis, sbp in zip(mesh.axes, layout, strict=True) if sbp.is_split)


def message_bytes(step: BoxingStep, num_bytes: int, mesh: Mesh) -> int:
    """Message n of the step, in bytes, for a logical tensor of ``num_bytes``: the larger of the two local tensors."""
    return num_bytes // min(split_factor(step.src, mesh), split_factor(step.dst, mesh))
