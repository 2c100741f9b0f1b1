"""Uniform random sampling, in vectorised batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import SearchOptions, SearchProblem, SearchResult
from autosbp.search.solvers.parallel_restarts import part_generator, run_parts
from autosbp.search.solvers.solver_state import SolverState

BATCH = 1024
BATCHES_OF_PART = 8
DEFAULT_EVALUATIONS = 100_000


def random(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """Sample assignments uniformly and keep the cheapest feasible one (the yardstick of AutoDDL, section 4.6).

    Stops after ``max_evaluations`` assignments (by default ``DEFAULT_EVALUATIONS``). Proves nothing.

    Raises:
        InfeasibleError: the least memories do not fit (proved), or no sample was feasible.
    """
    budget = DEFAULT_EVALUATIONS if options.max_evaluations is None else options.max_evaluations
    run = SolverState("random", problem, replace(options, max_evaluations=budget))
    run.require_least_memory()
    sizes = np.array([len(costs) for costs in problem.unary_s], dtype=np.int64)

    def part(at: int, own: SolverState) -> float:
        rng = part_generator(options.seed, at)
        for _ in range(BATCHES_OF_PART):
            if own.should_stop():
                break
            _sample(problem, rng, sizes, own)
        return 0.0

    run_parts(run, part)
    if options.max_evaluations is None and run.stopped == "max_evaluations":
        run.stopped = "done"
    return run.result()


def _sample(problem: SearchProblem, rng: np.random.Generator, sizes: NDArray[np.int64], run: SolverState) -> None:
    """Sample one batch."""
    left = run.remaining_evaluations
    count = BATCH if left is None else min(BATCH, left)
    samples = rng.integers(0, sizes, size=(count, len(sizes)))
    costs = batch_costs(problem, samples)
    first = int(costs.argmin())
    if costs[first] < run.cost_s:
        run.offer(samples[first])
        run.evaluations -= 1  # counted with the batch
    run.evaluations += count


def batch_costs(problem: SearchProblem, samples: NDArray[np.int64]) -> NDArray[np.float64]:
    """Costs in seconds of ``samples`` [count, variable]; inf if the memory limit is exceeded."""
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
