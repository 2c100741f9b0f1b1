"""Uniform sampling, in vectorised batches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import SearchOptions, SearchProblem, SearchResult
from autosbp.search._run import Run

BATCH = 1024
DEFAULT_EVALUATIONS = 100_000


def random(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """Sample assignments uniformly and keep the cheapest feasible one (the yardstick of AutoDDL, section 4.6).

    Stops after ``max_evaluations`` assignments (``DEFAULT_EVALUATIONS`` unless said). Proves nothing.

    Raises:
        InfeasibleError: the least memories do not fit (proved), or no sample was feasible.
    """
    run = Run("random", problem, options)
    run.require_least_memory()
    rng = np.random.default_rng(options.seed)
    sizes = np.array([len(costs) for costs in problem.unary_s], dtype=np.int64)
    budget = DEFAULT_EVALUATIONS if options.max_evaluations is None else options.max_evaluations
    while run.evaluations < budget and not run.should_stop():
        count = min(BATCH, budget - run.evaluations)
        samples = rng.integers(0, sizes, size=(count, len(sizes)))
        costs = batch_costs(problem, samples)
        first = int(costs.argmin())
        if costs[first] < run.cost_s:
            run.offer(samples[first])
            run.evaluations -= 1  # the batch counts it
        run.evaluations += count
    run.should_stop()
    return run.result()


def batch_costs(problem: SearchProblem, samples: NDArray[np.int64]) -> NDArray[np.float64]:
    """Costs in seconds of ``samples`` (count x variables); inf where the memory limit is exceeded."""
    costs = np.full(len(samples), problem.fixed_s)
    memory = np.full(len(samples), problem.fixed_memory_bytes, dtype=np.int64)
    columns = np.ascontiguousarray(samples.T)
    for unary, use, column in zip(problem.unary_s, problem.memory_bytes, columns, strict=True):
        costs += unary[column]
        memory += use[column]
    for edge in problem.edges:
        costs += edge.table[columns[edge.u], columns[edge.v]]
    if problem.memory_limit_bytes is not None:
        costs[memory > problem.memory_limit_bytes] = np.inf
    return costs
