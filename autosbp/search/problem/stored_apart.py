"""Baselines that store parameters split and gather them for use: ZeRO, FSDP and SUMMA's panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Costs, Strategy
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.storage import store_split
from autosbp.search.problem.assembly import Allowed
from autosbp.search.problem.baselines import Recipe

Solve = Callable[[Mesh, Allowed, int], tuple[LogicalGraph, Strategy, BoxingModel]]
"""The fastest strategy of a view under a rule at a microbatch, without a memory limit, with its graph and boxing model."""
ACTIVATIONS = ("activations", "temporaries", "data")


def best_stored_apart(
    recipe: Recipe, sizes: Sequence[int], limit: int, solve: Solve, compute: ComputeModel
) -> tuple[Strategy, Costs]:
    """The fastest of the recipe's grids, each at the largest of the microbatches ``sizes`` (falling) that fits.

    Raises:
        InfeasibleError: none fits ``limit`` bytes, or no microbatch splits evenly.
    """
    best: tuple[Strategy, Costs] | None = None
    problem: InfeasibleError | None = None
    for gather, (view, allowed) in product(recipe.gather, recipe.grids):
        try:
            found = _largest(gather, view, allowed, sizes, limit, solve, compute)
        except InfeasibleError as error:
            problem = error if problem is None or error.constraint == "memory_limit_bytes" else problem
            continue
        if best is None or found[1].step_time_s < best[1].step_time_s:
            best = found
    if best is None:
        raise problem or InfeasibleError("global_batch", sizes[0], None, "no microbatch splits evenly")
    return best


def _largest(
    gather: str, view: Mesh, allowed: Allowed, sizes: Sequence[int], limit: int, solve: Solve, compute: ComputeModel
) -> tuple[Strategy, Costs]:
    """Each failure tells which microbatch to try next: what it holds of activations falls with its size."""
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
        strategy = store_split(graph, strategy, gather)
        costs = evaluate(graph, strategy, boxing, compute)
        if costs.memory_bytes_per_device <= limit:
            return strategy, costs
        detail = f"at a microbatch of {size}, parameters stored split"
        problem = InfeasibleError("memory_limit_bytes", limit, costs.memory_bytes_per_device, detail)
        moving = sum(costs.memory.get(name, 0) for name in ACTIVATIONS)
        largest = size * max(limit - costs.memory_bytes_per_device + moving, 0) / max(moving, 1)
    raise problem or InfeasibleError("global_batch", sizes[0], None, "no microbatch splits evenly")
