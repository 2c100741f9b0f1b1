"""Whether training in microbatches, of whose losses the mean is taken, is training on the whole batch.

The ops' own rules tell (DESIGN section 5). Were the whole batch split over as many devices as there are microbatches, each
would do what a microbatch does, as long as no op has to communicate: every op then takes its inputs as they lie. The loss
comes out as a partial sum, of which a microbatch has its part - but for numbers that grow with the batch, by which means are
divided: those of a microbatch are its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.sbp.placement import B, I, P, S, Sbp
from autosbp.sbp.rules import node_options, sharding_of

SAME, COUNTED, SCALED, MIXED = "same", "counted", "scaled", "mixed"
ROUNDING = 1e-9
_QUOTIENTS, _PRODUCTS = (
    frozenset((f"aten.{name}.Tensor", f"aten.{name}.Scalar")) for name in ("div", "mul")
)
_LINEAR = frozenset(
    f"aten.{name}"
    for name in (
        "sum.default", "sum.dim_IntList", "neg.default", "to.dtype", "_to_copy.default", "add.Tensor", "sub.Tensor",
    )
)  # fmt: skip
_EQUAL = frozenset(f"aten.{name}.default" for name in ("expand", "zeros", "ones", "full"))
"""Make equal samples of what is no sample."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the mean of the losses of all microbatches is to the loss of the whole batch.

    ``same``: equal, as its gradients are; ``counted``: equal where each microbatch has as many labels as any other;
    ``scaled``: ``share`` of it; ``mixed``: something else, as ``op`` looks at samples together, or ``None`` is known of it.
    """

    kind: str
    share: float = 1.0
    op: str = ""


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor of a microbatch: how it lies in that of the whole batch, and times how much; and whether only if labels are
    as many in each."""

    state: Sbp
    times: float = 1.0
    counted: bool = False


class _MixedError(Exception):
    pass


def in_parts(graph: LogicalGraph, batch: int, micro_batch: int) -> Parts:
    """How ``graph``, whose symbols are all batches, trains in microbatches of a divisor of the batch."""
    if micro_batch == batch:
        return Parts(SAME)
    whole, part = (graph.bind(**dict.fromkeys(graph.symbols, size)) for size in (batch, micro_batch))
    values: dict[Ref, _Value] = {}
    for leaf, small in zip(whole.leaves, part.leaves, strict=True):
        values[Ref(leaf.name)] = _Value(_lies(leaf.meta.sizes, small.meta.sizes) or B)
    for node, other in zip(whole.nodes, part.nodes, strict=True):
        try:
            _follow(whole, node, other, values, batch // micro_batch)
        except _MixedError:
            return Parts(MIXED, op=node.op)
    loss = values[whole.loss]
    if loss.state not in (B, P):
        return Parts(MIXED)
    share = loss.times * micro_batch / batch if loss.state == P else 1.0
    if abs(share - 1.0) > ROUNDING:
        return Parts(SCALED, share)
    return Parts(COUNTED if loss.counted else SAME)


def _lies(whole: tuple[int, ...], part: tuple[int, ...]) -> Sbp | None:
    """Where a tensor of a microbatch has one dim smaller, it is split there; None where none is."""
    dims = [dim for dim, (one, other) in enumerate(zip(whole, part, strict=True)) if one != other]
    if len(dims) > 1:
        raise _MixedError
    return S(dims[0]) if dims else None


def _follow(whole: LogicalGraph, node: Node, other: Node, values: dict[Ref, _Value], count: int) -> None:
    ins = [values[ref] for ref in node.refs()]
    counted = any(each.counted for each in ins)
    lie = [_lies(one.sizes, small.sizes) for one, small in zip(node.outputs, other.outputs, strict=True)]
    if node.op == "aten.div.Tensor" and [each.state for each in ins] == [P, P]:
        # A sum over a sum, as of losses over labels.
        values[Ref(node.name)] = _Value(P, count * ins[0].times / ins[1].times, counted=True)
        return
    times = _times(whole, node, other, ins)
    for at, state in enumerate(_outs(whole, node, tuple(each.state for each in ins), lie)):
        values[Ref(node.name, at)] = _Value(state, times, counted)


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
        grown = math.prod(float(one) / float(small) for one, small in numbers if isinstance(one, (int, float)))
        if node.op in _PRODUCTS:
            return math.prod(times) / grown
        return times[0] / math.prod(times[1:]) * grown
    if set(times) - {1.0} and not (len(set(times)) == 1 and (node.op in _LINEAR or sharding_of(whole, node).free)):
        raise _MixedError
    return max(times, default=1.0)
