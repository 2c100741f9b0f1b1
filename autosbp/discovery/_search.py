"""``discover``: the legal layouts of an op without a rule, found by running it in parts (OneFlow leaves this open).

The search tries every combination of split, whole and partial inputs on one mesh axis, also with integer attributes
that hold sizes divided. An output's state is how its parts recombine: concatenated, equal, summed, largest or smallest.
What holds forward is proved in 2 and 3 parts on all samples, gradients included (S for S, P for B, B for P); pairs are
then proved on a 2 x 2 mesh. A count bounds the runs of the op, so that every machine finds the same; a clock stops very
slow ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from autosbp.discovery._call import Call, Tensor, make_call
from autosbp.discovery._candidates import (
    States,
    additive_inputs,
    divided_attribute_candidates,
    partial_candidates,
    split_candidates,
)
from autosbp.discovery._prover import MAX_RUNS, OutOfBudget, Prover, SplitWay
from autosbp.discovery._samples import RandomOp, Undiscoverable, samples
from autosbp.graph.int_attributes import Path
from autosbp.sbp.factor_notation import AxisOption, Sharding
from autosbp.sbp.layout import B

MAX_S = 60.0
RESERVED = 0.1
"""Share of runs and time reserved for proofs on two axes."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """Result of a discovery.

    ``options`` are the layouts besides replication, which every op has; ``reason`` says why there are none, or why the
    search is incomplete (``complete`` is False).
    """

    options: tuple[AxisOption, ...]
    reason: str = ""
    complete: bool = True
    random: bool = False
    num_runs: int = 0

    @property
    def sharding(self) -> Sharding:
        """The options as a rule of the op at the example's shapes."""
        return Sharding((), extra=self.options, random=self.random)


def discover(
    op: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    max_runs: int = MAX_RUNS,
    max_s: float = MAX_S,
) -> Discovery:
    """The layouts in which ``op(*args, **kwargs)`` may run in parts.

    Args:
        op: a ``torch.library`` op, or any function of tensors without side effects.
        args, kwargs: an example. Only shapes, dtypes and the largest integer of its tensors matter; float tensors carry
            gradients. Sizes should be multiples of 6: a size that neither 2 nor 3 divides is not split.
        max_runs, max_s: limits of the op's runs and of their total seconds.

    Returns:
        The discovery. Failures of the op are not raised: a result without options gives the reason.
    """
    return discover_call(make_call(op, args, kwargs or {}, _described), max_runs, max_s)


def _described(arg: Any) -> Tensor | None:
    if not isinstance(arg, torch.Tensor):
        return None
    whole = arg.dtype.is_floating_point or arg.dtype == torch.bool or arg.numel() == 0
    return Tensor(tuple(arg.shape), arg.dtype, arg.dtype.is_floating_point, None if whole else int(arg.max()) + 1)


def discover_call(call: Call, max_runs: int = MAX_RUNS, max_s: float = MAX_S) -> Discovery:
    """Like ``discover``, for a prepared ``Call``; uses float64 if the op accepts it."""
    failure = Undiscoverable("")
    for one in (as_float64(call), call):
        try:
            drawn = samples(one)
        except RandomOp as error:
            return Discovery((), str(error), random=True)
        except Undiscoverable as error:
            failure = error
            continue
        return search(Prover(one, drawn, max_runs), max_s)
    return Discovery((), str(failure))


def as_float64(call: Call) -> Call:
    """The call with its float tensors as float64."""
    return replace(
        call,
        tensors=tuple(
            replace(spec, dtype=torch.float64) if spec.dtype.is_floating_point else spec for spec in call.tensors
        ),
    )


def search(prover: Prover, max_s: float = MAX_S) -> Discovery:
    """Every layout of the prover's call, as far as its runs and ``max_s`` seconds suffice."""
    budget = prover.runs_left
    reserved = int(RESERVED * budget)
    prover.runs_left -= reserved
    end_s = prover.clock() + max_s
    prover.deadline_s = end_s - RESERVED * max_s
    found: dict[States, SplitWay] = {}
    complete = True
    try:
        _ways(prover, found)
    except OutOfBudget:
        complete = False
    prover.runs_left += reserved
    prover.deadline_s = end_s
    try:
        ways = _jointly_valid_ways(prover, list(found.values()))
    except OutOfBudget:
        ways, complete = [], False
    reason = "" if ways else "has no layout that splits its work"
    num_runs = budget - prover.runs_left
    if not complete:
        reason = f"has untested layouts after {num_runs} runs"
    options = tuple(_option(prover, way, at) for at, way in enumerate(ways))
    return Discovery(options, reason, complete, num_runs=num_runs)


def _ways(prover: Prover, found: dict[States, SplitWay]) -> None:
    """Add every way to run the call on one axis to ``found``."""
    call = prover.call
    first, second = prover.samples[:2]
    for ins in partial_candidates(call):
        _try(prover, found, ins, (), 2)
    paths = divided_attribute_candidates(call)
    for ins in split_candidates(call, additive_inputs(call, first, second)):
        for divided in paths:
            if divided or any(sbp.is_split for sbp in ins):
                for count in prover.counts(ins, (), divided):
                    _try(prover, found, ins, divided, count)


def _try(prover: Prover, found: dict[States, SplitWay], ins: States, divided: tuple[Path, ...], size: int) -> None:
    if ins in found:
        return
    for outs in prover.layouts(ins, divided, size):
        way = SplitWay(ins, outs, divided)
        if holds_in_parts(prover, way):
            found[ins] = way
            return


def holds_in_parts(prover: Prover, way: SplitWay) -> bool:
    """Whether ``way`` holds in 2 and in 3 parts, as far as these divide its sizes."""
    if not prover.matches_call(way):
        return False
    counts = prover.counts(way.ins, way.outs, way.divided)
    return bool(counts) and all(prover.holds((way,), (count,)) for count in counts)


def _jointly_valid_ways(prover: Prover, ways: list[SplitWay]) -> list[SplitWay]:
    """Ways of which any two hold together on a 2 x 2 mesh.

    Repeatedly drops the way with the most failures, until no pair fails.
    """
    failed = {
        (one, two)
        for one in ways
        for two in ways
        if _divides_on_two_axes(prover, one, two) and not prover.holds((one, two), (2, 2), prover.samples[:1])
    }
    while failed:
        worst = max(ways, key=lambda way: sum((way in pair) + (pair == (way, way)) for pair in failed))
        ways = [way for way in ways if way != worst]
        failed = {pair for pair in failed if worst not in pair}
    return ways


def _divides_on_two_axes(prover: Prover, one: SplitWay, two: SplitWay) -> bool:
    """Whether two axes of 2 devices can use the two ways at once."""
    if any(2 not in prover.counts(way.ins, way.outs, way.divided) for way in (one, two)):
        return False
    sample = prover.samples[0]
    tensors = (*sample.values, *sample.outputs)
    for value, left, right in zip(tensors, (*one.ins, *one.outs), (*two.ins, *two.outs), strict=True):
        if left.is_split and left == right and value.shape[left.dim] % 4:
            return False
    return not any(path in two.divided and prover.extent((), (), (path,)) % 4 for path in one.divided)


def _option(prover: Prover, way: SplitWay, index: int) -> AxisOption:
    linear = not any(sbp.is_split for sbp in (*way.ins, *way.outs)) and not way.divided
    if linear:
        return AxisOption("P", way.ins, way.outs, False)
    divides = any(sbp != B for sbp in way.outs)
    return AxisOption(
        f"f{index}", way.ins, way.outs, divides, prover.extent(way.ins, way.outs, way.divided), divided=way.divided
    )
