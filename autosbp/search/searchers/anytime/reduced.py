"""From a problem to the smaller network that is searched, and back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autosbp.errors import InfeasibleError
from autosbp.search.searchers.anytime.contract import Core, contract, folded
from autosbp.search.searchers.anytime.dead_ends import needed_values
from autosbp.search.searchers.anytime.network import lay_out
from autosbp.search.searchers.anytime.problem import IntervalProblem


def reduced(problem: IntervalProblem, should_stop: Callable[[], bool] = lambda: False) -> Core:
    """What is left after contraction and without dead ends; with some, where these took too long to find.

    Raises:
        InfeasibleError: a node has no value that is not forbidden, or that fits beside the least of all others.
    """
    core = contract(problem)
    _require_values(core, problem.limit)
    network = lay_out(folded(core.problem))
    return core.keep(needed_values(network, should_stop))


def _require_values(core: Core, limit: float) -> None:
    if all(len(costs) for costs in core.problem.costs):
        return
    if np.isfinite(limit):
        detail = "a choice has no value that is allowed and fits beside the least of all others (proved)"
        raise InfeasibleError("memory_limit_bytes", int(limit), None, detail)
    raise InfeasibleError("cost_s", float("inf"), None, "every assignment holds a forbidden value or pair (proved)")
