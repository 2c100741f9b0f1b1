"""The tuning space: points (``Choices``), and the strategy with the cheapest layouts for each.

A point fixes stages and mesh view (with given or free degrees of data and tensor parallelism), microbatch size,
parameter sharding, activation checkpointing, bucket size, schedule, synchronization of gradients, whether hidden
communication is free when layouts are chosen, and perturbations. A perturbation adds random seconds to the layouts of
some ops before the search problem is solved. All layouts are chosen by the solver, so every point is a valid strategy,
and points that share perturbations have similar layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from autosbp.cluster.spec import Cluster, prime_factors
from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Costs, Strategy
from autosbp.search import SearchProblem
from autosbp.search.branch_and_bound.candidate import Candidate
from autosbp.search.branch_and_bound.context import SearchMode
from autosbp.search.branch_and_bound.search_stats import SearchStats
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import Planner
from autosbp.search.problem.cost_weights import GATHER_PER_STEP, GATHER_PER_USE, UNSHARDED
from autosbp.search.problem.parallel_degrees import ParallelDegrees, constrained_views
from autosbp.search.stages.layout_problems import OverlapWeights, PipelineStructure, SubproblemKey
from autosbp.tuning.sync_choices import DEFAULT_SYNC, sync_names, synchronized
from autosbp.utils.json_io import Fields

MICRO_BATCHES = 4
"""Number of microbatch sizes per pipeline structure, largest first."""
PERTURBED_SHARE = 0.3
"""Share of ops whose costs a perturbation changes."""
AMPLITUDES = (0.1, 5.0)
"""Range of a perturbation's amplitude, relative to the mean cost of an op including boxing."""
NUM_PERTURBATIONS = 64
_FOREVER_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Choices:
    """One point of a ``StrategySpace``.

    Args:
        grid: name of stages and mesh view, such as ``2 stages, data 2, tensor 1`` or ``1 stage, n0:2 g0:2``.
        micro_batch: index into the structure's microbatch sizes, largest first; an index past the end means the last.
        storage: parameter sharding: ``as_used``, ``step`` (ZeRO-2) or ``use`` (ZeRO-3).
        recompute: whether every repeated block is checkpointed.
        bucket_bytes: maximum size of gradient buckets and parameter gathers.
        schedule: pipeline schedule; ignored without stages.
        hides: whether communication that overlaps computation is free, not charged in full, when layouts are chosen.
        sync: synchronization strategy, one of ``sync_choices.sync_names``.
        perturbations: seeds of the perturbations, applied in order.
    """

    grid: str
    micro_batch: int
    storage: str
    recompute: bool
    bucket_bytes: int
    schedule: str
    hides: bool
    sync: str = DEFAULT_SYNC
    perturbations: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "perturbations": [*self.perturbations],
        }

    @staticmethod
    def from_dict(data: object, path: str = "choices") -> Choices:
        read = Fields(data, path, tuple(Choices.__slots__))
        return Choices(
            read.text("grid"), read.integer("micro_batch"), read.text("storage"), read.boolean("recompute"),
            read.integer("bucket_bytes"), read.text("schedule"), read.boolean("hides"),
            str(read.raw("sync")), tuple(read.sequence("perturbations")),
        )  # fmt: skip


class StrategySpace:
    """Points of a plan's search space, and their strategies.

    Args:
        graph: the captured graph, with a symbolic batch.
        cluster: the cluster; strategies use all its devices.
        calibration: a calibration of this cluster, or None.
        options: options of the plan; the choices that they constrain do not vary.

    Attributes:
        domains: possible values of each choice except perturbations, by name.
        graph: the graph in the plan's precision.
        limit_bytes: memory limit of a device.
    """

    def __init__(
        self, graph: LogicalGraph, cluster: Cluster, calibration: Calibration | None, options: PlanOptions
    ) -> None:
        options = replace(options, baselines=(), time_limit_s=_FOREVER_S)
        self._planner = planner = Planner(graph, cluster, calibration, options, None)
        self.graph, self.cluster, self.limit_bytes = planner.graph, planner.cluster, planner.limit
        self._grids = dict(_grids(planner))
        storages = (UNSHARDED, GATHER_PER_STEP, GATHER_PER_USE) if options.storage is None else (options.storage,)
        self.domains: Mapping[str, tuple[Any, ...]] = {
            "grid": tuple(self._grids),
            "micro_batch": tuple(range(MICRO_BATCHES)),
            "storage": planner.kind().parameter_shardings if planner.asked.pins else storages,
            "recompute": planner.search.context.checkpointing_choices,
            "bucket_bytes": planner.problems.sizes,
            "schedule": options.schedules,
            "hides": (True, False),
            "sync": sync_names(),
        }

    def candidate(self, choices: Choices) -> Candidate | None:
        """The strategy of a point with its predicted costs; None if no strategy of the point fits in memory."""
        search, structure = self._planner.search, self._grids[choices.grid]
        sizes = search.context.micro_batches(structure.stages)[:MICRO_BATCHES]
        if not sizes:
            return None
        key = SubproblemKey(
            structure, sizes[min(choices.micro_batch, len(sizes) - 1)], choices.storage, choices.recompute,
            OverlapWeights(whole=not choices.hides),
        )  # fmt: skip
        search.context.begin(SearchMode("auto", (choices.storage,), wants_bounds=False), SearchStats(), None)
        try:
            layouts = search.problems.build(key, None)
            result = search.solver.search(perturbed(layouts.problem, choices.perturbations))
            found = search.coster.fastest_fitting(search.coster.candidates(layouts, result, (choices.schedule,)))
        except InfeasibleError:
            return None
        return None if found is None else self._with_messages(found, choices)

    def _with_messages(self, found: Candidate, choices: Choices) -> Candidate | None:
        """The strategy with the point's bucket size and synchronization; None if that is invalid or out of memory."""
        strategy = replace(found.strategy, bucket_bytes=choices.bucket_bytes)
        try:
            strategy = synchronized(self.bound(strategy), strategy, self.cluster, choices.sync)
        except InputError:
            return None
        changed = found if strategy == found.strategy else Candidate(strategy, self.costs(strategy))
        return changed if self._planner.search.coster.has_room(changed) else None

    def costs(self, strategy: Strategy) -> Costs:
        """Predicted costs of any strategy of the graph on the cluster."""
        boxing = self._planner.problems.boxing(strategy.mesh)
        return self._planner.search.coster.costs(self.bound(strategy), strategy, boxing)

    def bound(self, strategy: Strategy) -> LogicalGraph:
        """The graph at a strategy's microbatch size."""
        return self._planner.problems.bound(strategy.micro_batch)


def perturbed(problem: SearchProblem, seeds: tuple[int, ...]) -> SearchProblem:
    """The problem with perturbed unary costs. Variables that share a cost table, as in repeated blocks, still share one."""
    unary = {id(costs): costs for costs in problem.unary_s}
    mean_s = _mean_op_s(problem) if seeds else 0.0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        scale = mean_s * float(np.exp(rng.uniform(*np.log(AMPLITUDES))))
        chosen = rng.random(len(unary)) < PERTURBED_SHARE
        unary = {
            key: costs + scale * rng.random(len(costs)) * changes
            for (key, costs), changes in zip(unary.items(), chosen, strict=True)
        }
    return replace(problem, unary_s=tuple(unary[id(costs)] for costs in problem.unary_s)) if seeds else problem


def _mean_op_s(problem: SearchProblem) -> float:
    """Mean cost of a variable in seconds, including its edges."""
    tables = [*problem.unary_s, *(edge.table for edge in problem.edges)]
    finite = (table[np.isfinite(table)] for table in tables)
    return sum(float(costs.mean()) for costs in finite if costs.size) / problem.num_variables


def _grids(planner: Planner) -> Iterator[tuple[str, PipelineStructure]]:
    """Pipeline structures by name: those of the plan's search, and one for each pair of data and tensor parallel degrees.

    The latter are left out if the options constrain degrees or pin layouts.
    """
    taken: dict[str, int] = {}
    for structure in planner.structures():
        axes = " ".join(f"{axis.name}:{axis.size}" for axis in structure.view.axes) or "one device"
        name = f"{_stages(structure.stages)}, {axes}"
        taken[name] = taken.get(name, 0) + 1
        yield name if taken[name] == 1 else f"{name} ({taken[name]})", structure
    if planner.asked.degrees or planner.asked.pins:
        return
    for stages, mesh in planner.asked.meshes(planner.can_fill):
        for tensor in divisors(mesh.size):
            degrees = ParallelDegrees(mesh.size // tensor, tensor)
            ways = constrained_views(mesh, planner.asked.pins, degrees, planner.roles)
            for view, allowed in ways[-1:]:  # tensor-parallel groups inside a node
                name = f"{_stages(stages)}, data {degrees.data}, tensor {tensor}"
                yield name, PipelineStructure(stages, view, allowed)


def _stages(count: int) -> str:
    return "1 stage" if count == 1 else f"{count} stages"


def divisors(number: int) -> list[int]:
    """All divisors, smallest first."""
    found = {1}
    for factor in prime_factors(number):
        found |= {each * factor for each in found}
    return sorted(found)
