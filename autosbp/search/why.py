"""Cost of each alternative layout of an op, with all other layouts chosen again.

The alternatives lie in the plan's own subproblem: its stages, mesh, microbatch and parameter sharding. The step of each
strategy is simulated, and bounded if it may not be the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Costs, Plan, Strategy
from autosbp.sbp.layout import format_nd_sbp
from autosbp.search.branch_and_bound.plan_subproblem import checked_sources
from autosbp.search.op_alternatives import Alternatives, FixedOp
from autosbp.search.plan_options import PlanOptions
from autosbp.utils.json_io import check_integer

MAX_OPS = 16
"""Maximum number of ops that match a pattern."""
DEFAULT_NUM_ALTERNATIVES = 12
"""Default number of costed alternatives of an op."""
GAP_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class CostedSignature:
    """One signature of an op, with the best strategy found for it.

    For the plan's signature, that is the plan's strategy or a faster one.

    Args:
        signature: layouts of the op's inputs and outputs on the plan's mesh.
        chosen: whether it is the plan's.
        bound_s: lower bound on the step of strategies with this signature.
        costs, strategy: None if no strategy with it fits in memory; ``reason`` says what it needs.
        changes: layouts that differ from the plan's, of other ops and of stored parameters: (in the plan, in this
            strategy).
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
        """Largest fraction of the step that another strategy with this signature may save; None if unknown."""
        if self.costs is None or self.bound_s == -math.inf:
            return None
        gap = (self.step_time_s - self.bound_s) / self.step_time_s if self.step_time_s else 0.0
        return gap if gap > GAP_ROUNDING else 0.0


@dataclass(frozen=True, slots=True)
class OpAlternatives:
    """The cheapest signatures of one op, fastest first; ``num_signatures`` counts all in the search space."""

    op: str
    reads: tuple[str, ...]
    num_signatures: int
    found: tuple[CostedSignature, ...]


def why(
    graph: LogicalGraph,
    plan: Plan,
    name: str,
    calibration: Calibration | None = None,
    *,
    most: int = DEFAULT_NUM_ALTERNATIVES,
) -> tuple[OpAlternatives, ...]:
    """Cost of other layouts of an op, with all else chosen again in the plan's own subproblem.

    Args:
        graph, calibration: those that the plan was made from.
        name: an op, a parameter (for the ops that read it), or a pattern of either such as ``h.*.mlp.weight``.
        most: number of alternatives of an op to cost; the plan's own is always among them.

    Raises:
        InputError: an unknown name, a name of too many ops, or another graph or calibration than the plan's.
    """
    check_integer("most", most, 1, 1000)
    graph = checked_sources(graph, plan, calibration)
    ops = _named(graph, plan.strategy, name)
    options = replace(PlanOptions.from_dict(plan.document["options"]), baselines=())
    solver = Alternatives(graph, plan, options, calibration)
    return tuple(_op_alternatives(graph, plan.strategy, solver, op, most) for op in ops)


def _named(graph: LogicalGraph, strategy: Strategy, name: str) -> list[str]:
    """Ops that match a name or pattern, in program order."""
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
        raise InputError("why", name, f"expected an op or parameter of the plan, such as {', '.join(near)}")
    if len(found) > MAX_OPS:
        raise InputError(
            "why", name, (f"expected a name that matches at most {MAX_OPS} ops; this one matches {len(found)}")
        )
    return found


def _op_alternatives(
    graph: LogicalGraph, strategy: Strategy, solver: Alternatives, op: str, most: int
) -> OpAlternatives:
    held, own = solver.hold(op), str(strategy.signatures[op])
    costed = [signature for at, signature in enumerate(held.values) if at < most or signature == own]
    found = [_alternative(strategy, solver, held, op, signature) for signature in costed]
    found.sort(key=lambda each: (each.step_time_s, each.bound_s))
    node = next(node for node in graph.nodes if node.name == op)
    reads = tuple(ref.name for ref in node.refs() if ref.name in strategy.parameters)
    return OpAlternatives(op, reads, len(held.values), tuple(found))


def _alternative(strategy: Strategy, solver: Alternatives, held: FixedOp, op: str, signature: str) -> CostedSignature:
    chosen = signature == str(strategy.signatures[op])
    try:
        best, bound_s = solver.best_of(held, signature)
    except InfeasibleError as error:
        return CostedSignature(signature, chosen, math.inf, None, None, {}, str(error))
    bound_s = min(bound_s, best.costs.step_time_s)
    return CostedSignature(signature, chosen, bound_s, best.costs, best.strategy, _changes(strategy, best.strategy, op))


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
