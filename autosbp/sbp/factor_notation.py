"""Sharding rules in factor notation, and the signatures that follow from them.

A rule names the factors (loop indices) of one op: ``b... k, n k, +[n] -> b... n`` is a linear layer. Terms are the op's
tensor arguments in order; ``[...]`` may be absent; ``+`` marks an operand that is added to the result; ``b...`` stands
for any number of leading dims. Giving a mesh axis to a factor splits every tensor that holds it; inputs without it are
B; an output without it is P. Factors listed as whole may not be split. Inputs in which the op is linear may be P.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from autosbp.errors import GraphError
from autosbp.graph.int_attributes import Path
from autosbp.graph.ir import LogicalGraph, Node, Ref, TensorMeta
from autosbp.sbp.layout import B, I, P, S, Sbp


@dataclass(frozen=True, slots=True)
class Factor:
    """One loop index of an op: its size, and its dim in each tensor input and output (-1: none)."""

    name: str
    size: int
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Sharding:
    """An op's factors at concrete shapes.

    ``additive`` are inputs added to the result; ``linear`` the sets of inputs that may be P together; ``flops`` counts
    the forward pass of the whole op; ``free`` ops move no data; ``random`` ops need a seed per shard. ``split_impls``
    are the whole factors that a split implementation serves; ``extra`` are layouts that factors cannot express.
    ``reduction`` combines the partial results of a split contracted factor; ``max`` and ``min`` have no gradient, so
    these options are offered only for outputs without one. ``skewed`` are the factors whose even split leaves one rank
    up to twice the even share of the work. ``launches`` counts kernels, forward and backward, and ``traffic`` how often
    each byte of the inputs and outputs is read or written: more than once by ops that run steps one after another.
    """

    factors: tuple[Factor, ...]
    additive: frozenset[int] = frozenset()
    linear: tuple[frozenset[int], ...] = ()
    flops: float = 0.0
    free: bool = False
    random: bool = False
    split_impls: tuple[str, ...] = ()
    extra: tuple[AxisOption, ...] = ()
    reduction: str = "sum"
    skewed: frozenset[str] = frozenset()
    launches: tuple[float, float] = (1.0, 1.0)
    traffic: float = 1.0


@dataclass(frozen=True, slots=True)
class AxisOption:
    """One op's layouts on one mesh axis.

    ``factor`` is the split factor (or ``B``, ``I``, ``P``); ``divides`` says whether the axis divides the work;
    ``size`` is the extent that the axis must divide (0: any); ``implemented`` says whether a split implementation
    replaces the op; ``skewed`` whether one rank has more work than others. ``divided`` are the integer attributes, such
    as a number of groups, that each rank divides like the tensors.
    """

    factor: str
    ins: tuple[Sbp, ...]
    outs: tuple[Sbp, ...]
    divides: bool
    size: int = 0
    needs_split_impl: bool = False
    skewed: bool = False
    divided: tuple[Path, ...] = ()


Rule = Callable[[Node, Sequence[TensorMeta]], Sharding]


def tensor_inputs(graph: LogicalGraph, node: Node) -> list[TensorMeta]:
    """Metadata of the tensor arguments, in the order of ``node.refs()``."""
    return [graph.meta(ref) for ref in node.refs()]


def axis_options(
    sharding: Sharding, differentiable_ins: tuple[bool, ...], differentiable_outs: tuple[bool, ...]
) -> tuple[AxisOption, ...]:
    """Every legal layout of an op on one mesh axis, each once (OneFlow Table 1 for a matmul).

    A tensor without a gradient has one kind of replication, written B.
    """
    return _axis_options(sharding, differentiable_ins, differentiable_outs)


@lru_cache(maxsize=4096)
def _axis_options(
    sharding: Sharding, diff_ins: tuple[bool, ...], diff_outs: tuple[bool, ...]
) -> tuple[AxisOption, ...]:
    options: dict[tuple[tuple[Sbp, ...], tuple[Sbp, ...]], AxisOption] = {}

    def add(option: AxisOption) -> None:
        ins = tuple(B if sbp == I and not diff else sbp for sbp, diff in zip(option.ins, diff_ins, strict=True))
        outs = tuple(B if sbp == I and not diff else sbp for sbp, diff in zip(option.outs, diff_outs, strict=True))
        options.setdefault((ins, outs), replace(option, ins=ins, outs=outs))

    partial_sum = Sbp("P", reduction=sharding.reduction)
    for factor in sharding.factors:
        implemented = factor.whole and factor.name in sharding.split_impls
        if factor.whole and not implemented:
            continue
        contracted = any(dim < 0 for dim in factor.outs)
        if contracted and sharding.reduction != "sum" and any(diff_outs):
            continue
        ins = tuple(
            S(dim) if dim >= 0 else P if contracted and index in sharding.additive else B
            for index, dim in enumerate(factor.ins)
        )
        outs = tuple(S(dim) if dim >= 0 else partial_sum for dim in factor.outs)
        if any(sbp.is_split for sbp in ins):
            skewed = factor.name in sharding.skewed
            add(AxisOption(factor.name, ins, outs, True, factor.size, implemented, skewed))
    for option in sharding.extra:
        extremum = any(sbp.reduction != "sum" and diff for sbp, diff in zip(option.outs, diff_outs, strict=True))
        if not extremum:
            add(option)
    num_ins, num_outs = len(diff_ins), len(diff_outs)
    add(AxisOption("B", (B,) * num_ins, (B,) * num_outs, False))
    add(AxisOption("I", (I,) * num_ins, (I,) * num_outs, False))
    for inputs in sharding.linear:
        if max(inputs) < num_ins:
            partial = tuple(P if index in inputs or index in sharding.additive else B for index in range(num_ins))
            add(AxisOption("P", partial, (P,) * num_outs, False))
    return tuple(options.values())


def notation(
    text: str, *, linear: str = "", whole: str = "", flops: float = 0.0, split_impls: tuple[str, ...] = ()
) -> Rule:
    """Rule from factor notation; ``linear`` lists sets of inputs, such as ``"0; 1"``; ``flops`` is per point."""
    left, right = (side.strip() for side in text.split("->"))
    terms = [term.strip() for term in left.split(",")]
    out_terms = [term.split() for term in right.split(",")]
    whole_names = set(whole.split())
    sets = tuple(frozenset(int(index) for index in part.split()) for part in linear.split(";") if part.strip())

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        present: list[tuple[list[str], bool]] = []
        for position, term in enumerate(terms):
            arg = node.args[position] if position < len(node.args) else None
            if isinstance(arg, Ref):
                present.append((term.strip("+[]").split(), term.startswith("+")))
            elif "[" not in term:
                raise GraphError(f"{node.name}.args[{position}]", arg, f"{node.op} expects a tensor here")
        if len(present) != len(metas):
            raise GraphError(f"{node.name}.args", len(metas), f"{node.op} expects {len(present)} tensors here")
        table = FactorTable(node, len(metas), len(out_terms))
        for index, ((names, _), meta) in enumerate(zip(present, metas, strict=True)):
            table.hold(index, _expand_names(node, names, meta), meta, output=False)
        for index, (names, meta) in enumerate(zip(out_terms, node.outputs, strict=True)):
            table.hold(index, _expand_names(node, names, meta), meta, output=True)
        factors = table.factors(whole_names)
        return Sharding(
            factors,
            frozenset(index for index, (_, added) in enumerate(present) if added),
            sets,
            flops * prod(factor.size for factor in factors),
            split_impls=split_impls,
        )

    return rule


def _expand_names(node: Node, names: list[str], meta: TensorMeta) -> list[str]:
    """Expand ``b... k`` to one name per dim of the tensor."""
    spread: list[str] = []
    for name in names:
        if name.endswith("..."):
            extra = len(meta.shape) - len(names) + 1
            spread.extend(f"{name[:-3]}{index}" for index in range(extra))
        else:
            spread.append(name)
    if len(spread) != len(meta.shape):
        raise GraphError(f"{node.name}.shape", list(meta.shape), f"{node.op} expects dims ({' '.join(names)})")
    return spread


class FactorTable:
    """Collects the dim of each factor in each tensor, and checks that sizes agree."""

    def __init__(self, node: Node, num_ins: int, num_outs: int) -> None:
        self.node, self.num_ins, self.num_outs = node, num_ins, num_outs
        self.sizes: dict[str, int] = {}
        self.ins: dict[str, list[int]] = {}
        self.outs: dict[str, list[int]] = {}

    def hold(self, index: int, names: Sequence[str], meta: TensorMeta, *, output: bool) -> None:
        for dim, (name, size) in enumerate(zip(names, meta.sizes, strict=True)):
            self.set(name, size, index, dim, output=output)

    def set(self, name: str, size: int, index: int, dim: int, *, output: bool) -> None:
        known = self.sizes.setdefault(name, size)
        if known != size:
            where = f"{self.node.name}.{'outputs' if output else 'inputs'}[{index}].shape[{dim}]"
            raise GraphError(where, size, f"{self.node.op} expects {known}")
        self.ins.setdefault(name, [-1] * self.num_ins)
        self.outs.setdefault(name, [-1] * self.num_outs)
        (self.outs if output else self.ins)[name][index] = dim

    def factors(self, whole: Collection[str]) -> tuple[Factor, ...]:
        return tuple(
            Factor(
                name,
                size,
                tuple(self.ins[name]),
                tuple(self.outs[name]),
                name in whole or name.rstrip("0123456789") in whole,
            )
            for name, size in self.sizes.items()
            if size > 1 or name in whole
        )
