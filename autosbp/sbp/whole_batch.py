"""Whether training in microbatches, of whose losses the mean is taken, is training on the whole batch.

The ops' own rules tell (DESIGN section 5). Were the whole batch split over as many devices as there are microbatches, each
would do what a microbatch does, as long as no op has to communicate: every op then takes its inputs as they lie. The loss
comes out as a partial sum, of which a microbatch has its part - but for numbers that grow with the batch, by which means are
divided: those of a microbatch are its own.

Where such a number is made of the batch alone, as the labels that count are, every rank has it of the whole batch before the
first pass, and microbatches divide by it (``denominators``); also where more is done to it, as to keep it from 0. A loss of
which microbatches have another share than their equal part is multiplied (``scale``). What is so made ``exact`` trains as the
whole batch does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.sbp.placement import B, I, P, S, Sbp
from autosbp.sbp.rules import node_options, sharding_of

SAME, COUNTED, SCALED, MIXED = "same", "counted", "scaled", "mixed"
ROUNDING = 1e-9
_QUOTIENTS, _PRODUCTS = (frozenset((f"aten.{name}.Tensor", f"aten.{name}.Scalar")) for name in ("div", "mul"))
_LINEAR = frozenset(
    f"aten.{name}"
    for name in (
        "sum.default", "sum.dim_IntList", "neg.default", "to.dtype", "_to_copy.default", "add.Tensor", "sub.Tensor",
    )
)  # fmt: skip
_EQUAL = frozenset(f"aten.{name}.default" for name in ("expand", "zeros", "ones", "full"))
"""Make equal samples of what is no sample."""


@dataclass(frozen=True, slots=True)
class Denominator:
    """A number of the batch alone that sums are divided by: a sum itself, or made of the ``sums``, of which all microbatches
    together have ``times`` what the whole batch has."""

    ref: Ref
    sums: frozenset[Ref]
    times: float


@dataclass(frozen=True, slots=True)
class Parts:
    """What the mean of the losses of all microbatches is to the loss of the whole batch.

    ``same``: equal, as its gradients are; ``counted``: equal where each microbatch has as many labels as any other;
    ``scaled``: ``share`` of it; ``mixed``: something else, as ``op`` looks at samples together, or ``None`` is known of it.
    ``denominators`` are, by the names of divisions, their second arguments that are made of the batch alone; a microbatch of
    ``count`` divides by those of the whole batch over ``count``. ``exact``: with these, the sum of the losses,
    each times ``scale``, is that of the whole batch, and so are the gradients.
    """

    kind: str
    share: float = 1.0
    op: str = ""
    count: int = 1
    denominators: Mapping[str, Denominator] = field(default_factory=dict)
    exact: bool = True

    @property
    def scale(self) -> float:
        """What a microbatch's loss counts times."""
        return 1.0 / (self.count * self.share)


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor of a microbatch: how it lies in that of the whole batch, and times how much; whether only if labels are as
    many in each, and whether these are known beforehand. A number that is no sum itself was made of ``sums``, as in
    ``Denominator``: it can only be divided by."""

    state: Sbp
    times: float = 1.0
    counted: bool = False
    known: bool = True
    sums: frozenset[Ref] = frozenset()


class _MixedError(Exception):
    pass


def in_parts(graph: LogicalGraph, batch: int, micro_batch: int) -> Parts:
    """How ``graph``, whose symbols are all batches, trains in microbatches of a divisor of the batch."""
    if micro_batch == batch:
        return Parts(SAME)
    whole, part = (graph.bind(**dict.fromkeys(graph.symbols, size)) for size in (batch, micro_batch))
    count = batch // micro_batch
    values: dict[Ref, _Value] = {}
    for leaf, small in zip(whole.leaves, part.leaves, strict=True):
        values[Ref(leaf.name)] = _Value(_lies(leaf.meta.sizes, small.meta.sizes) or B)
    for node, other in zip(whole.nodes, part.nodes, strict=True):
        try:
            _follow(whole, node, other, values, count)
        except _MixedError:
            sums = _made_of_sums(whole, node, values)
            if not sums:
                return Parts(MIXED, op=node.op, count=count, exact=False)
            values[Ref(node.name)] = _Value(P, values[next(iter(sums))].times, sums=sums)
    loss = values[whole.loss]
    if loss.state not in (B, P):
        return Parts(MIXED, count=count, exact=False)
    share = loss.times / count if loss.state == P else 1.0
    if abs(share - 1.0) <= ROUNDING:
        share = 1.0
    kind = SCALED if share != 1.0 else COUNTED if loss.counted else SAME
    denominators = {node.name: by for node in whole.nodes if (by := _denominator(whole, node, values)) is not None}
    return Parts(kind, share, count=count, denominators=denominators, exact=loss.known)


def difference(graph: LogicalGraph, batch: int, micro_batch: int) -> list[str]:
    """A sentence where training in these microbatches is not training on the whole batch."""
    parts = in_parts(graph, batch, micro_batch)
    if parts.exact:
        return []
    if parts.kind == MIXED:
        return [
            f"{parts.op or 'The loss'} looks at several samples together: in {parts.count} microbatches it sees {micro_batch} "
            f"at a time, so that training is not that of the whole batch; one microbatch of {batch} is."
        ]
    return [
        f"The loss is divided by what is not known of the batch alone: training in {parts.count} microbatches is that of the "
        f"whole batch only where this is as much in each; one microbatch of {batch} is."
    ]


def _denominator(whole: LogicalGraph, node: Node, values: dict[Ref, _Value]) -> Denominator | None:
    """The number that a sum is divided by, where it is a sum over the batch, known before the first pass: no parameter goes
    into it, nothing random, and no other such quotient."""
    refs = list(node.refs())
    if node.op != "aten.div.Tensor" or [values[ref].state for ref in refs] != [P, P]:
        return None
    by = refs[1]
    if by.name in whole.computed or values[by].counted or prod(whole.meta(by).sizes) != 1:
        return None
    if any(sharding_of(whole, each).random for each in made_of(whole, (by,))):
        return None
    return Denominator(by, values[by].sums or frozenset((by,)), values[by].times)


def _made_of_sums(whole: LogicalGraph, node: Node, values: dict[Ref, _Value]) -> frozenset[Ref]:
    """The sums over the batch that a node makes one number of, such as one that is at least 1, all of the same ``times``; none
    where it makes more, or where a parameter or a tensor that lies otherwise in a microbatch goes into it."""
    refs = list(node.refs())
    if node.name in whole.computed or any(values[ref].counted or values[ref].state not in (B, P) for ref in refs):
        return frozenset()
    numbers = [*node.outputs, *(whole.meta(ref) for ref in refs if values[ref].state == P)]
    if len(node.outputs) != 1 or any(prod(meta.sizes) != 1 for meta in numbers):
        return frozenset()
    sums = frozenset(each for ref in refs if values[ref].state == P for each in values[ref].sums or (ref,))
    return sums if len({values[ref].times for ref in sums}) == 1 and not any(ref.index for ref in sums) else frozenset()


def made_of(graph: LogicalGraph, refs: Iterable[Ref], given: Collection[Ref] = ()) -> tuple[Node, ...]:
    """The ops that these values are made by, in the program's order; those that make what is ``given`` are left out."""
    names, done = {ref.name for ref in refs}, {ref.name for ref in given}
    found = []
    for node in reversed(graph.nodes):
        if node.name in names - done:
            found.append(node)
            names.update(ref.name for ref in node.refs())
    return tuple(reversed(found))


def _lies(whole: tuple[int, ...], part: tuple[int, ...]) -> Sbp | None:
    """Where a tensor of a microbatch has one dim smaller, it is split there; None where none is."""
    dims = [dim for dim, (one, other) in enumerate(zip(whole, part, strict=True)) if one != other]
    if len(dims) > 1:
        raise _MixedError
    return S(dims[0]) if dims else None


def _follow(whole: LogicalGraph, node: Node, other: Node, values: dict[Ref, _Value], count: int) -> None:
    ins = [values[ref] for ref in node.refs()]
    counted, known = any(each.counted for each in ins), all(each.known for each in ins)
    lie = [_lies(one.sizes, small.sizes) for one, small in zip(node.outputs, other.outputs, strict=True)]
    if node.op == "aten.div.Tensor" and [each.state for each in ins] == [P, P]:
        # A sum over a sum, as of losses over labels.
        known = known and _denominator(whole, node, values) is not None
        if ins[0].sums:
            raise _MixedError
        values[Ref(node.name)] = _Value(P, count * ins[0].times / ins[1].times, counted=True, known=known)
        return
    if any(each.sums for each in ins):
        raise _MixedError
    times = _times(whole, node, other, ins)
    for at, state in enumerate(_outs(whole, node, tuple(each.state for each in ins), lie)):
        values[Ref(node.name, at)] = _Value(state, times, counted, known)


def _outs(whole: LogicalGraph, node: Node, ins: tuple[Sbp, ...], lie: list[Sbp | None]) -> tuple[Sbp, ...]:
    """How a node's outputs lie without communication, where these are split as they are smaller."""
    if node.op in _EQUAL and set(ins) <= {B}:
        return tuple(state or B for state in lie)
    for option in node_options(whole, node):
        outs = _alike(option.outs)
        fits = [state if state.is_split else None for state in outs] == lie
        if fits and not option.implemented and _alike(option.ins) == ins:
            return outs
    raise _MixedError


def _alike(states: tuple[Sbp, ...]) -> tuple[Sbp, ...]:
    """Whole tensors, whatever their gradients are."""
    return tuple(B if state == I else state for state in states)


def _times(whole: LogicalGraph, node: Node, other: Node, ins: list[_Value]) -> float:
    """Times how much a microbatch has of what it has in the whole batch."""
    times = [each.times for each in ins]
    if node.op in _QUOTIENTS or node.op in _PRODUCTS:
        numbers = zip(node.args[1:], other.args[1:], strict=True)
        grown = prod(float(one) / float(small) for one, small in numbers if isinstance(one, (int, float)))
        if node.op in _PRODUCTS:
            return prod(times) / grown
        return times[0] / prod(times[1:]) * grown
    if set(times) - {1.0} and not (len(set(times)) == 1 and (node.op in _LINEAR or sharding_of(whole, node).free)):
        raise _MixedError
    return max(times, default=1.0)
