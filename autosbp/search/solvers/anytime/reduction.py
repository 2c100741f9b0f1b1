"""Reduces a problem to the smaller network that is searched, and maps back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autosbp.errors import InfeasibleError
from autosbp.search.solvers.anytime.cost_network import lay_out
from autosbp.search.solvers.anytime.dead_end_elimination import needed_values
from autosbp.search.solvers.anytime.interval_problem import IntervalProblem
from autosbp.search.solvers.anytime.node_contraction import ContractedNetwork, contract, with_tables_folded


def reduce_problem(problem: IntervalProblem, should_stop: Callable[[], bool] = lambda: False) -> ContractedNetwork:
    """The problem after contraction and dead-end elimination; incomplete if ``should_stop`` cut the latter short.

    Raises:
        InfeasibleError: a node has no allowed value, or none that fits next to the least memory of all others.
    """
    core = contract(problem)
    _require_values(core, problem.limit)
    network = lay_out(with_tables_folded(core.problem))
    return core.keep(needed_values(network, should_stop))


def _require_values(core: ContractedNetwork, limit: float) -> None:
    if all(len(costs) for costs in core.problem.costs):
        return
    if np.isfinite(limit):
        detail = "a variable has no allowed value that fits with the minimum of all others (proved)"
        raise InfeasibleError("memory_limit_bytes", int(limit), None, detail)
    raise InfeasibleError("cost_s", float("inf"), None, "every assignment has a forbidden value or pair (proved)")
