"""Baselines that store parameters split and gather them for use: ZeRO, FSDP and SUMMA's panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Costs, Strategy
from autosbp.program.parameter_sharding import shard_parameters
from autosbp.sbp.mesh import Mesh
from autosbp.search.problem.baselines import Recipe
from autosbp.search.problem.builder_base import Allowed

Solve = Callable[[Mesh, Allowed, int], tuple[LogicalGraph, Strategy, BoxingModel]]
"""The fastest strategy of a view under a rule at a microbatch size, without a memory limit, with its graph and boxing model."""
ACTIVATIONS = ("activations", "temporaries", "data")


def best_zero_strategy(
    recipe: Recipe, sizes: Sequence[int], limit: int, solve: Solve, compute: ComputeModel
) -> tuple[Strategy, Costs]:
    """The fastest of the recipe's grids, each at the largest of the microbatch sizes (descending) that fits.

    Raises:
        InfeasibleError: none fits ``limit`` bytes, or no microbatch splits evenly.
    """
    best: tuple[Strategy, Costs] | None = None
    problem: InfeasibleError | None = None
    for gather, (view, allowed) in product(recipe.gather, recipe.grids):
        try:
            found = _largest_fitting_microbatch(gather, view, allowed, sizes, limit, solve, compute)
        except InfeasibleError as error:
            problem = error if problem is None or error.constraint == "memory_limit_bytes" else problem
            continue
        if best is None or found[1].step_time_s < best[1].step_time_s:
            best = found
    if best is None:
        raise problem or InfeasibleError("global_batch", sizes[0], None, "no microbatch splits evenly")
    return best


def _largest_fitting_microbatch(
    gather: str, view: Mesh, allowed: Allowed, sizes: Sequence[int], limit: int, solve: Solve, compute: ComputeModel
) -> tuple[Strategy, Costs]:
    """The largest size that fits. Activation memory falls with the size, so each failure tells which size to try next."""
    problem: InfeasibleError | None = None
    largest = float(sizes[0])
    for size in sizes:
        if size > largest and size != sizes[-1]:
            continue
        try:
            graph, strategy, boxing = solve(view, allowed, size)
        except InfeasibleError as error:
            problem = problem or error
            continue
        strategy = shard_parameters(graph, strategy, gather)
        costs = evaluate(graph, strategy, boxing, compute)
        if costs.memory_bytes_per_device <= limit:
            return strategy, costs
        detail = f"with a microbatch of {size} and sharded parameters"
        problem = InfeasibleError("memory_limit_bytes", limit, costs.memory_bytes_per_device, detail)
        moving = sum(costs.memory.get(name, 0) for name in ACTIVATIONS)
        largest = size * max(limit - costs.memory_bytes_per_device + moving, 0) / max(moving, 1)
    raise problem or InfeasibleError("global_batch", sizes[0], None, "no microbatch splits evenly")
