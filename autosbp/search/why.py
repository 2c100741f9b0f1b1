"""Why an op has its layout: what each other one would cost, with all else chosen anew in the plan's own space, which is its
stages, mesh, microbatch and storage. The step of each strategy is simulated, and bounded where it may not be the quickest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.jsonio import check_integer
from autosbp.plan import Costs, Plan, Strategy
from autosbp.sbp.placement import format_nd_sbp
from autosbp.search._alternatives import Alternatives, HeldOp
from autosbp.search.plan_options import PlanOptions
from autosbp.search.space.plan_space import check_sources

MAX_OPS = 16
"""Ops that one pattern may name."""
MOST = 12
"""Alternatives of an op that are costed, by default."""
PROVED = 1e-9


@dataclass(frozen=True, slots=True)
class Alternative:
    """One signature of an op, with the best strategy that was found with it: of the plan's signature the plan's own, or a
    quicker one.

    Args:
        signature: layouts of the op's inputs and outputs on the plan's mesh.
        chosen: whether it is the plan's.
        bound_s: no strategy of the space with this signature takes less.
        costs, strategy: None where no strategy with it fits in memory; ``reason`` says what it needs.
        changes: ops and stored parameters, the op itself left out, that it lays out otherwise than the plan does: layouts
            in the plan, and in this strategy.
    """

    signature: str
    chosen: bool
    bound_s: float
    costs: Costs | None
    strategy: Strategy | None
    changes: Mapping[str, tuple[str, str]]
    reason: str = ""

    @property
    def step_time_s(self) -> float:
        return math.inf if self.costs is None else self.costs.step_time_s

    @property
    def gap(self) -> float | None:
        """The part of the step by which another strategy with this signature may be faster, at most; None where that is not
        known."""
        if self.costs is None or self.bound_s == -math.inf:
            return None
        gap = (self.step_time_s - self.bound_s) / self.step_time_s if self.step_time_s else 0.0
        return gap if gap > PROVED else 0.0


@dataclass(frozen=True, slots=True)
class OpAlternatives:
    """The signatures of one op that cost least, quickest first; ``num_signatures`` is how many it has in the space."""

    op: str
    reads: tuple[str, ...]
    num_signatures: int
    found: tuple[Alternative, ...]


def why(
    graph: LogicalGraph, plan: Plan, name: str, calibration: Calibration | None = None, *, most: int = MOST
) -> tuple[OpAlternatives, ...]:
    """What other layouts of an op would cost, all else chosen anew in the plan's own space.

    Args:
        graph, calibration: those that the plan was made from.
        name: an op, a parameter (for the ops that read it), or a pattern of either such as ``h.*.mlp.weight``.
        most: alternatives of an op that are costed; the plan's own is always among them.

    Raises:
        InputError: for a name that there is not, one of too many ops, or another graph or calibration than the plan's.
    """
    check_integer("most", most, 1, 1000)
    check_sources(graph, plan, calibration)
    ops = _named(graph, plan.strategy, name)
    options = replace(PlanOptions.from_dict(plan.document["options"]), baselines=())
    solver = Alternatives(graph, plan, options, calibration)
    return tuple(_of(graph, plan.strategy, solver, op, most) for op in ops)


def _named(graph: LogicalGraph, strategy: Strategy, name: str) -> list[str]:
    """The ops that a name or pattern stands for, in the program's order."""
    exact = name in strategy.signatures or name in strategy.parameters

    def matches(each: str) -> bool:
        return each == name if exact else fnmatchcase(each, name)

    found = [
        node.name
        for node in graph.nodes
        if node.name in strategy.signatures
        and (matches(node.name) or any(ref.name in strategy.parameters and matches(ref.name) for ref in node.refs()))
    ]
    if not found:
        near = get_close_matches(name, [*strategy.signatures, *strategy.parameters], n=3, cutoff=0.0)
        raise InputError("why", name, f"an op or parameter of the plan is expected, such as {', '.join(near)}")
    if len(found) > MAX_OPS:
        raise InputError("why", name, f"a name of at most {MAX_OPS} ops is expected; this is one of {len(found)}")
    return found


def _of(graph: LogicalGraph, strategy: Strategy, solver: Alternatives, op: str, most: int) -> OpAlternatives:
    held, own = solver.hold(op), str(strategy.signatures[op])
    costed = [signature for at, signature in enumerate(held.values) if at < most or signature == own]
    found = [_alternative(strategy, solver, held, op, signature) for signature in costed]
    found.sort(key=lambda each: (each.step_time_s, each.bound_s))
    node = next(node for node in graph.nodes if node.name == op)
    reads = tuple(ref.name for ref in node.refs() if ref.name in strategy.parameters)
    return OpAlternatives(op, reads, len(held.values), tuple(found))


def _alternative(strategy: Strategy, solver: Alternatives, held: HeldOp, op: str, signature: str) -> Alternative:
    chosen = signature == str(strategy.signatures[op])
    try:
        best, bound_s = solver.best_of(held, signature)
    except InfeasibleError as error:
        return Alternative(signature, chosen, math.inf, None, None, {}, str(error))
    bound_s = min(bound_s, best.costs.step_time_s)
    return Alternative(signature, chosen, bound_s, best.costs, best.strategy, _changes(strategy, best.strategy, op))


def _changes(plan: Strategy, other: Strategy, op: str) -> dict[str, tuple[str, str]]:
    ops = {
        name: (str(signature), str(other.signatures[name]))
        for name, signature in plan.signatures.items()
        if name != op and signature != other.signatures[name]
    }
    stored = {
        name: (format_nd_sbp(layout), format_nd_sbp(other.parameters[name]))
        for name, layout in plan.parameters.items()
        if layout != other.parameters[name]
    }
    return ops | stored
