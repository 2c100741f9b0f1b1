"""Loss scaling: whether training in microbatches, averaging their losses, equals training on the whole batch.

The ops' sharding rules decide this. Split the whole batch over as many devices as there are microbatches: each device
does the work of one microbatch, as long as every op accepts its inputs' layouts without communication. The loss is then
a partial sum, and each microbatch computes its part. The exception are numbers that grow with the batch and by which
means are divided: a microbatch computes its own.

If such a number depends on the batch alone, such as the number of labels that count, every rank computes it for the
whole batch before the first pass, and microbatches divide by it (``denominators``). This includes numbers transformed
further, for instance to keep them from 0. If a microbatch's loss is not its equal share, it is multiplied (``scale``).
With these, training is the same as on the whole batch if ``exact``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.sbp.layout import B, I, P, S, Sbp
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
"""Ops that make equal samples from inputs without samples."""
_DRAWN = frozenset(f"aten.{name}.default" for name in ("rand", "randn", "rand_like", "randn_like", "bernoulli"))
"""Ops that draw every sample for itself."""


@dataclass(frozen=True, slots=True)
class Denominator:
    """A number of the batch alone that sums are divided by: a sum itself, or computed from ``sums``.

    The sums of all microbatches add up to ``times`` the whole batch's.
    """

    ref: Ref
    sums: frozenset[Ref]
    times: float


@dataclass(frozen=True, slots=True)
class LossScaling:
    """Relation of the mean of all microbatches' losses to the loss of the whole batch.

    ``kind`` is ``same``: equal, as are the gradients; ``counted``: equal if every microbatch has the same number of
    labels; ``scaled``: ``share`` times the loss; or ``mixed``: none of these, because ``op`` combines samples ("" if it
    is not one op). ``count`` is the number of microbatches. ``denominators`` maps the names of divisions to their
    second arguments that depend on the batch alone; a microbatch divides by ``times`` the whole batch's value over ``count``.
    ``exact``: with these, the sum of the losses, each times ``scale``, is that of the whole batch, and so are the
    gradients.
    """

    kind: str
    share: float = 1.0
    op: str = ""
    count: int = 1
    denominators: Mapping[str, Denominator] = field(default_factory=dict)
    exact: bool = True

    @property
    def scale(self) -> float:
        """Factor of a microbatch's loss."""
        return 1.0 / (self.count * self.share)


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor of a microbatch in relation to that of the whole batch.

    ``state`` is its layout as a part of the whole batch's; ``times`` the factor by which the microbatches' values
    together exceed it; ``counted`` says whether that holds only for equal numbers of labels, ``known`` whether these
    are known before the first pass. A number computed from ``sums``, as in ``Denominator``, can only be a divisor.
    """

    state: Sbp
    times: float = 1.0
    counted: bool = False
    known: bool = True
    sums: frozenset[Ref] = frozenset()


class _MixedError(Exception):
    pass


def microbatch_loss_scaling(
    graph: LogicalGraph, batch: int, micro_batch: int, independent: frozenset[str] = _DRAWN
) -> LossScaling:
    """How ``graph`` trains in microbatches.

    Args:
        graph: all its symbols are batch sizes.
        batch: samples of the whole batch.
        micro_batch: samples of a microbatch, a divisor of ``batch``.
        independent: ops that are taken to make each sample from its own.
    """
    if micro_batch == batch:
        return LossScaling(SAME)
    whole, part = (graph.bind(**dict.fromkeys(graph.symbols, size)) for size in (batch, micro_batch))
    count = batch // micro_batch
    values: dict[Ref, _Value] = {}
    for leaf, small in zip(whole.leaves, part.leaves, strict=True):
        values[Ref(leaf.name)] = _Value(_split_dim(leaf.meta.sizes, small.meta.sizes) or B)
    for node, other in zip(whole.nodes, part.nodes, strict=True):
        try:
            _propagate(whole, node, other, values, count, independent)
        except _MixedError:
            sums = _source_sums(whole, node, values)
            if not sums:
                return LossScaling(MIXED, op=node.op, count=count, exact=False)
            values[Ref(node.name)] = _Value(P, values[next(iter(sums))].times, sums=sums)
    loss = values[whole.loss]
    if loss.state not in (B, P):
        return LossScaling(MIXED, count=count, exact=False)
    share = loss.times / count if loss.state == P else 1.0
    if abs(share - 1.0) <= ROUNDING:
        share = 1.0
    kind = SCALED if share != 1.0 else COUNTED if loss.counted else SAME
    denominators = {node.name: by for node in whole.nodes if (by := _denominator(whole, node, values)) is not None}
    return LossScaling(kind, share, count=count, denominators=denominators, exact=loss.known)


def mixes_samples(graph: LogicalGraph, batch: int) -> str:
    """The op with which the loss of each sample depends on others, as in a contrastive loss; "" if there is none.

    Batch norm does not count: training it in microbatches is usual.
    """
    key = "mixes_samples", batch
    if key not in graph.cache:
        graph.cache[key] = _mixing_op(graph, batch)
    found: str = graph.cache[key]
    return found


def _mixing_op(graph: LogicalGraph, batch: int) -> str:
    part = next((batch // prime for prime in range(2, batch + 1) if batch % prime == 0), batch)
    found = microbatch_loss_scaling(graph, batch, part, _DRAWN | {"aten.batch_norm.default"})
    return found.op or "the loss" if found.kind == MIXED else ""


def whole_batch_differences(graph: LogicalGraph, batch: int, micro_batch: int) -> list[str]:
    """One sentence if training in these microbatches differs from the whole batch, else none."""
    parts = microbatch_loss_scaling(graph, batch, micro_batch)
    if parts.exact:
        return []
    if parts.kind == MIXED:
        return [
            f"{parts.op or 'The loss'} combines several samples: with {parts.count} microbatches it sees "
            f"{micro_batch} at a time, so training differs from the whole batch; one microbatch of {batch} avoids "
            "this."
        ]
    return [
        f"The loss is divided by a value that depends on the data: training with {parts.count} microbatches equals "
        f"the whole batch only if this value is the same in each; one microbatch of {batch} avoids this."
    ]


def _denominator(whole: LogicalGraph, node: Node, values: dict[Ref, _Value]) -> Denominator | None:
    """The divisor of a sum, if it is a sum over the batch that is known before the first pass.

    No parameter, nothing random and no other such quotient may go into it.
    """
    refs = list(node.refs())
    if node.op != "aten.div.Tensor" or [values[ref].state for ref in refs] != [P, P]:
        return None
    by = refs[1]
    if by.name in whole.parameter_dependent or values[by].counted or prod(whole.meta(by).sizes) != 1:
        return None
    if any(sharding_of(whole, each).random for each in producing_nodes(whole, (by,))):
        return None
    return Denominator(by, values[by].sums or frozenset((by,)), values[by].times)


def _source_sums(whole: LogicalGraph, node: Node, values: dict[Ref, _Value]) -> frozenset[Ref]:
    """The sums over the batch from which a node computes one number, such as the maximum of a sum and 1.

    All have the same ``times``. Empty if the node computes more than one number, or if a parameter or a tensor with
    another layout goes into it.
    """
    refs = list(node.refs())
    if node.name in whole.parameter_dependent or any(
        values[ref].counted or values[ref].state not in (B, P) for ref in refs
    ):
        return frozenset()
    numbers = [*node.outputs, *(whole.meta(ref) for ref in refs if values[ref].state == P)]
    if len(node.outputs) != 1 or any(prod(meta.sizes) != 1 for meta in numbers):
        return frozenset()
    sums = frozenset(each for ref in refs if values[ref].state == P for each in values[ref].sums or (ref,))
    return sums if len({values[ref].times for ref in sums}) == 1 and not any(ref.index for ref in sums) else frozenset()


def producing_nodes(graph: LogicalGraph, refs: Iterable[Ref], given: Collection[Ref] = ()) -> tuple[Node, ...]:
    """Ops that compute these values, in the program's order, without those that compute ``given``."""
    names, done = {ref.name for ref in refs}, {ref.name for ref in given}
    found = []
    for node in reversed(graph.nodes):
        if node.name in names - done:
            found.append(node)
            names.update(ref.name for ref in node.refs())
    return tuple(reversed(found))


def _split_dim(whole: tuple[int, ...], part: tuple[int, ...]) -> Sbp | None:
    """The split along the dim in which a microbatch's tensor is smaller, or None."""
    dims = [dim for dim, (one, other) in enumerate(zip(whole, part, strict=True)) if one != other]
    if len(dims) > 1:
        raise _MixedError
    return S(dims[0]) if dims else None


def _propagate(
    whole: LogicalGraph, node: Node, other: Node, values: dict[Ref, _Value], count: int, independent: frozenset[str]
) -> None:
    ins = [values[ref] for ref in node.refs()]
    counted, known = any(each.counted for each in ins), all(each.known for each in ins)
    lie = [_split_dim(one.sizes, small.sizes) for one, small in zip(node.outputs, other.outputs, strict=True)]
    if node.op == "aten.div.Tensor" and [each.state for each in ins] == [P, P]:
        # A sum divided by a sum, such as losses by labels.
        known = known and _denominator(whole, node, values) is not None
        if ins[0].sums:
            raise _MixedError
        values[Ref(node.name)] = _Value(P, count * ins[0].times / ins[1].times, counted=True, known=known)
        return
    if any(each.sums for each in ins):
        raise _MixedError
    times = _output_ratio(whole, node, other, ins)
    states = _output_states(whole, node, tuple(each.state for each in ins), lie, independent)
    for at, state in enumerate(states):
        values[Ref(node.name, at)] = _Value(state, times, counted, known)


def _output_states(
    whole: LogicalGraph, node: Node, ins: tuple[Sbp, ...], lie: list[Sbp | None], independent: frozenset[str]
) -> tuple[Sbp, ...]:
    """Layouts of a node's outputs without communication; ``lie`` are the splits of the smaller outputs."""
    if (node.op in _EQUAL and set(ins) <= {B}) or (node.op in independent and P not in ins):
        return tuple(state or B for state in lie)
    for option in node_options(whole, node):
        outs = _without_invariants(option.outs)
        fits = [state if state.is_split else None for state in outs] == lie
        if fits and not option.needs_split_impl and _without_invariants(option.ins) == ins:
            return outs
    raise _MixedError


def _without_invariants(states: tuple[Sbp, ...]) -> tuple[Sbp, ...]:
    """The states with I written as B: forward values are the same."""
    return tuple(B if state == I else state for state in states)


def _output_ratio(whole: LogicalGraph, node: Node, other: Node, ins: list[_Value]) -> float:
    """``times`` of a node's outputs (see ``_Value``)."""
    times = [each.times for each in ins]
    if node.op in _QUOTIENTS or node.op in _PRODUCTS:
        numbers = zip(node.args[1:], other.args[1:], strict=True)
        grown = prod(float(one) / float(small) for one, small in numbers if isinstance(one, (int, float)) and small)
        if node.op in _PRODUCTS:
            return prod(times) / grown
        return times[0] / prod(times[1:]) * grown
    if set(times) - {1.0} and not (len(set(times)) == 1 and (node.op in _LINEAR or sharding_of(whole, node).free)):
        raise _MixedError
    return max(times, default=1.0)
