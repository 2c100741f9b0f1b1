"""``anytime``: for cost graphs too dense for elimination, or too large."""

from __future__ import annotations

import time

import numpy as np

from autosbp.errors import InfeasibleError
from autosbp.search._base import SearchOptions, SearchProblem, SearchResult
from autosbp.search.searchers.run import Run, forbidden

FOR_SEARCH = 0.5
"""Of the time limit, what is left when dead ends are looked for no more."""
ROUNDING = 16.0
"""Of scaled costs, of which at most 2**44 are added up."""


def anytime(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """Annealing with moves of trees beside tree-reweighted bounds; branch and bound for what is small.

    Choices that imply each other become one, and dead ends are left out, first. The bound is that of message passing, with
    memory at Lagrangian prices, or of branch and bound, whose tolerance is 1e-9 of the cost. Stops when the optimum is
    proved, or after many turns without a gain. ``max_evaluations`` counts assignments that were costed by the definition.

    Raises:
        InputError: see ``validate`` and ``check_options``.
        InfeasibleError: nothing is feasible (proved), or nothing was met.
    """
    from autosbp.search.searchers.anytime.problem import interval_problem
    from autosbp.search.searchers.anytime.reduced import reduced
    from autosbp.search.searchers.anytime.solver import Found, Solver

    run = Run("anytime", problem, options)
    run.require_least_memory()
    if problem.num_variables == 0:
        run.offer(())
        run.raise_bound(problem.fixed_s)
        return run.result()
    given, scale = interval_problem(problem)
    try:
        core = reduced(given, lambda: run.remaining_s < FOR_SEARCH * options.time_limit_s)
    except InfeasibleError as error:
        if run.best is None:
            raise forbidden() if error.constraint == "cost_s" else error from None
        return run.result()
    seen = [np.inf]

    def should_stop(found: Found) -> bool:
        if found.x is not None and found.cost < seen[0]:
            seen[0] = found.cost
            run.offer(core.expand(found.x))
        if np.isfinite(found.bound):
            run.raise_bound(problem.fixed_s + (found.bound - ROUNDING) / scale)
        return run.is_close or run.should_stop()

    deadline = time.monotonic() + run.remaining_s
    found = Solver(core.problem, options.seed, deadline, should_stop).run()
    should_stop(found)
    if run.best is None and found.infeasible:
        raise forbidden()
    if found.proved and run.best is not None:
        run.raise_bound(run.cost_s)
    return run.result({"work": float(found.work), "nodes": float(core.problem.num_nodes)})
