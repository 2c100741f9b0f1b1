"""The searcher ``anytime``, for cost graphs too dense for elimination, or too large."""

from __future__ import annotations

import time

import numpy as np

from autosbp.errors import InfeasibleError
from autosbp.search._base import SearchOptions, SearchProblem, SearchResult
from autosbp.search.solvers.solver_state import SolverState, all_forbidden_error

FOR_SEARCH = 0.5
"""Fraction of the time limit that dead-end elimination leaves for the search."""
ROUNDING = 16.0
"""Rounding of scaled costs, whose sum is at most 2**44."""


def anytime(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """Annealing with tree moves alongside tree-reweighted bounds; branch and bound for small problems.

    First, choices that imply each other are merged, and dead ends removed. The bound is that of message passing, with
    memory relaxed by Lagrange multipliers, or of branch and bound, whose tolerance is 1e-9 of the cost. Stops when the
    optimum is proved, or after many turns without a gain. ``max_evaluations`` counts assignments that were costed by
    the definition.

    Raises:
        InputError: see ``validate`` and ``check_options``.
        InfeasibleError: nothing is feasible (proved), or nothing was found.
    """
    from autosbp.search.solvers.anytime.interval_problem import interval_problem
    from autosbp.search.solvers.anytime.reduction import reduce_problem
    from autosbp.search.solvers.anytime.solver import AnytimeSolver, BestAssignment

    run = SolverState("anytime", problem, options)
    run.require_least_memory()
    if problem.num_variables == 0:
        run.offer(())
        run.raise_bound(problem.fixed_s)
        return run.result()
    given, scale = interval_problem(problem)
    try:
        core = reduce_problem(given, lambda: run.remaining_s < FOR_SEARCH * options.time_limit_s)
    except InfeasibleError as error:
        if run.best is None:
            raise all_forbidden_error() if error.constraint == "cost_s" else error from None
        return run.result()
    seen = [np.inf]

    def should_stop(found: BestAssignment) -> bool:
        if found.x is not None and found.cost < seen[0]:
            seen[0] = found.cost
            run.offer(core.expand(found.x))
        if np.isfinite(found.bound):
            run.raise_bound(problem.fixed_s + (found.bound - ROUNDING) / scale)
        return run.is_good_enough or run.should_stop()

    deadline = time.monotonic() + run.remaining_s
    found = AnytimeSolver(core.problem, options.seed, deadline, should_stop).run()
    should_stop(found)
    if run.best is None and found.infeasible:
        raise all_forbidden_error()
    if found.proved and run.best is not None:
        run.raise_bound(run.cost_s)
    return run.result({"work": float(found.work), "nodes": float(core.problem.num_nodes)})
