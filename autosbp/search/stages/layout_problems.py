"""The layout problems of one plan: one per structure, microbatch size and parameter sharding.

The layouts of one stage stand for those of all stages. A problem covers all ops of the model, with weights that make
its cost that of a step. With p stages and m microbatches, the slowest of equal stages has m/p of the work of one set of
devices, and waits for p - 1 microbatches of the others (Narayanan et al. 2021, section 2.2). So seconds of a microbatch
count (m + p - 1) / p times; once-a-step work, and parameter, gradient and optimizer state, 1/p times; activations
min(m, p) / p times (1F1B).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.chunk_cache import ChunkCostCache
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.folded_graph import NUM_KEPT_BLOCKS, FoldedGraph
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph, Parameter
from autosbp.plan.plan import BUCKET_BYTES, Strategy
from autosbp.program.gradient_buckets import bucket_message_bytes
from autosbp.sbp.layout import NdSbp
from autosbp.sbp.mesh import Mesh
from autosbp.search._base import SearchProblem
from autosbp.search.problem.builder import BuiltProblem, ProblemBuilder
from autosbp.search.problem.builder_base import Allowed
from autosbp.search.problem.cost_weights import (
    GATHER_PER_USE,
    UNSHARDED,
    CostWeights,
    OverlapFactors,
    OverlapMultipliers,
    hidden_slowdown,
)
from autosbp.search.problem.expand_repeats import (
    OUTSIDE,
    ExpandedProblem,
    block_subproblem,
    end_parts,
    expand_repeats,
    split_by_blocks,
)
from autosbp.search.problem.graph_parts import GraphParts
from autosbp.search.problem.op_clusters import OpCluster
from autosbp.search.problem.overlap_zones import OverlapZones
from autosbp.search.problem.parameter_costs import ParameterCosts
from autosbp.search.problem.pins import Pins
from autosbp.search.problem.strategy import strategy_of
from autosbp.search.stages.cut_points import crossing_bytes
from autosbp.search.stages.plan_cache import PLAN_CACHE
from autosbp.search.stages.schedule_candidates import bubble_per_stage
from autosbp.utils.parallel import run_parallel, run_serial
from autosbp.utils.serialization import serializable

MIN_OPS_TO_SOLVE_IN_PARALLEL, MIN_OPS_TO_COST_IN_PARALLEL = 40, 150
"""Graph sizes in ops, below which a second process is not worth its start.

The first is for solving problems, the second for costing strategies.
"""


@serializable
@dataclass(frozen=True, slots=True)
class OverlapWeights:
    """Overlap multipliers: how much of overlapped communication counts (``problem.cost_weights.OverlapFactors``).

    Each multiplier is between 0, if all of it may be hidden, and 1, if none is, and applies to communication over links
    of one level. ``gather``: parameter gathers during forward. ``reduce``: gradient reductions during backward.
    ``early``: those of early ops during either. With ``whole``, all communication counts on top of the compute that it
    overlaps with. That is no bound, but its optimum usually communicates little.
    """

    gather: float = 0.0
    reduce: float = 0.0
    early: float = 1.0
    gather_level: int = 0
    reduce_level: int = 0
    early_level: int = 0
    whole: bool = False

    def multipliers(self, level: int, slowdown: float) -> OverlapMultipliers | None:
        """Multipliers for a problem; ``level`` is that of the slowest links, to which the levels here are relative."""
        if self.whole:
            return None
        passes = ((self.gather, self.gather_level), (self.reduce, self.reduce_level))
        forward, backward = (
            OverlapFactors(part, max(part, self.early), level + own, level + self.early_level) for part, own in passes
        )
        return OverlapMultipliers(forward, backward, level, slowdown)


@dataclass(frozen=True)
class PipelineStructure:
    """Number of equal pipeline stages, and the view of one stage's mesh on which layouts are chosen.

    ``allowed`` restricts the layouts; None allows all.
    """

    stages: int
    view: Mesh
    allowed: Allowed | None = None

    @property
    def key(self) -> Hashable:
        """Key within one search only, since ``allowed`` is compared by identity."""
        return self.stages, self.view, id(self.allowed)


SubproblemId = tuple[Hashable, int, str, bool, OverlapWeights]


@dataclass(frozen=True)
class SubproblemKey:
    """Parameters of one search problem (a subproblem).

    Args:
        structure: stages and mesh view.
        micro_batch: size in samples.
        storage: parameter sharding.
        again: every repeated block is checkpointed by itself.
        exposure: overlap multipliers.
    """

    structure: PipelineStructure
    micro_batch: int
    storage: str
    again: bool = False
    overlap_weights: OverlapWeights = OverlapWeights()

    @property
    def key(self) -> SubproblemId:
        """Key within one search only, like that of the structure."""
        return self.structure.key, self.micro_batch, self.storage, self.again, self.overlap_weights

    @property
    def stages(self) -> int:
        return self.structure.stages

    @property
    def view(self) -> Mesh:
        return self.structure.view


@dataclass(frozen=True)
class Subproblem:
    """A problem over all layers; ``found`` holds the folded problem too if it was unfolded from one."""

    key: SubproblemKey
    found: BuiltProblem | ExpandedProblem

    @property
    def problem(self) -> SearchProblem:
        return self.found.problem

    @property
    def built(self) -> BuiltProblem:
        return self.found if isinstance(self.found, BuiltProblem) else self.found.built


class LayoutProblems:
    """Builds layout problems, and builds equal parts only once.

    Args:
        graph: with a symbolic batch.
        network, compute: cost models.
        global_batch: in samples.
        optimizer: name of the optimizer.
        pins: given layouts.
        offload: the optimizer state is on the host.
        sizes: gradient bucket sizes in bytes, largest first. Seconds are those of the first, bytes those of the last.
        schedules: names of the allowed pipeline schedules.

    Attributes:
        exposed: keys of structures whose once-a-step communication probably exceeds what a microbatch hides.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        network: NetworkModel,
        compute: ComputeModel,
        *,
        global_batch: int,
        optimizer: str,
        pins: Pins,
        offload: bool = False,
        sizes: tuple[int, ...] = (BUCKET_BYTES,),
        schedules: tuple[str, ...] = (),
    ) -> None:
        self.graph, self.network, self.compute, self.pins = graph, network, compute, pins
        self.global_batch, self.optimizer, self.offload = global_batch, optimizer, offload
        self.sizes, self.schedules = sizes, schedules
        self.bucket_bytes = BUCKET_BYTES if BUCKET_BYTES in sizes else sizes[0]
        self.message = bucket_message_bytes(graph, sizes[0])
        self.known_chunks = ChunkCostCache(
            run_parallel if len(graph.nodes) >= MIN_OPS_TO_COST_IN_PARALLEL else run_serial
        )
        self._parts = self._parts_of(folds=not pins)
        self._boxing: dict[Mesh, BoxingModel] = {}
        self._builders: dict[tuple[int, Mesh, int, str, bool, OverlapWeights], ProblemBuilder] = {}
        self._tables: dict[tuple[Mesh, int, bool, CostWeights], dict[Hashable, NDArray[np.float64]]] = {}
        self._slowdown = hidden_slowdown(compute.overlap)
        self.communication_bound: set[Hashable] = set()
        self._crossings: dict[int, NDArray[np.float64]] = {}

    def _parts_of(self, *, folds: bool) -> GraphParts:
        stored, counts = frozenset(self.pins.stored), self.network.cluster.mesh().split_counts
        return PLAN_CACHE.parts(self.graph, self.pins.names, stored, counts, folds=folds)

    @property
    def folding(self) -> FoldedGraph | None:
        return self._parts.folding

    @property
    def starts(self) -> frozenset[str] | None:
        """Ops that a stage may begin with; None allows any."""
        return self._parts.starts

    @property
    def blocks(self) -> tuple[tuple[str, ...], ...]:
        """Ops of each block that may be checkpointed."""
        return self._parts.blocks

    @property
    def zones(self) -> OverlapZones:
        """Position of ops within a pass."""
        return self._parts.zones

    def bound(self, micro_batch: int) -> LogicalGraph:
        """The whole graph, bound to a microbatch size."""
        return self._parts.bound(micro_batch)

    def crossing_bytes(self, micro_batch: int) -> NDArray[np.float64]:
        """Bytes that cross each place between two ops, see ``crossing_bytes``."""
        if micro_batch not in self._crossings:
            self._crossings[micro_batch] = crossing_bytes(self.bound(micro_batch))
        return self._crossings[micro_batch]

    @property
    def stages_share_hardware(self) -> bool:
        """Whether stages may share hardware, so that one uses what another leaves idle."""
        return self.compute.sharing is not None

    @property
    def max_stages(self) -> int:
        """Maximum number of stages: each holds at least one repeated block, or an op if there are no blocks."""
        if self.folding is not None:
            return self.folding.count
        return sum(node.name in self.graph.parameter_dependent for node in self.graph.nodes)

    @property
    def worth_second_process(self) -> bool:
        """Whether problems are large enough for a second process to pay."""
        return len(self.graph.nodes) >= MIN_OPS_TO_SOLVE_IN_PARALLEL

    def boxing(self, view: Mesh) -> BoxingModel:
        if view not in self._boxing:
            self._boxing[view] = PLAN_CACHE.boxing(self.network, view, self.compute.copy_bytes_per_s)
        return self._boxing[view]

    def num_micro(self, space: SubproblemKey) -> int:
        return self.global_batch // space.micro_batch

    def waits(self, stages: int, num_micro: int) -> float:
        """Pipeline bubble in microbatches, approximately the smallest of the allowed schedules."""
        return (stages - 1) * bubble_per_stage(stages, num_micro, self.schedules, self.max_stages)

    def weights(self, space: SubproblemKey) -> CostWeights:
        count, stages = self.num_micro(space), space.stages
        held = min(count, stages)
        micro, once = (count + self.waits(stages, count)) / stages, 1 / stages
        level = min((axis.level for axis in space.view.axes), default=0)
        weights = CostWeights(
            micro, once, 1 / stages, held / stages,
            multipliers=space.overlap_weights.multipliers(level, self._slowdown),
            passes=micro if space.storage == GATHER_PER_USE else once,
        )  # fmt: skip
        if not space.again:
            return weights
        # While one block is recomputed, the earlier blocks of its microbatch still hold their inputs: half, on average.
        own = max(1.0, len(self.blocks) / stages)
        handed = (held - 1 + (own + 1) / (2 * own)) / stages
        return replace(weights, segment_inputs=handed, segment_internals=1 / len(self.blocks))

    def least_memory(self, space: SubproblemKey) -> int:
        """Lower bound on bytes; raises ``InfeasibleError`` without even splits."""
        _, analysis = self._parts.folded_graph_and_analysis(space.micro_batch, space.again)
        return self._builder(space).least_memory(
            space.structure.allowed, self.cluster_multiplicities(analysis.clusters)
        )

    def num_clusters(self, micro_batch: int) -> int:
        """Number of op clusters of a folded problem."""
        return len(self._parts.folded_graph_and_analysis(micro_batch, again=False)[1].clusters)

    def cluster_multiplicities(self, clusters: Sequence[OpCluster]) -> list[int]:
        """Multiplicity in the whole model of each cluster of a folded problem."""
        if self.folding is None:
            return [1] * len(clusters)
        times = {OUTSIDE: 1, 0: 1, 1: self.folding.count - 2, 2: 0, NUM_KEPT_BLOCKS - 1: 1}
        return [times[self.folding.block_of.get(cluster.name, OUTSIDE)] for cluster in clusters]

    def least_s(self, space: SubproblemKey) -> float:
        """Lower bound on a problem's cost without edge costs; raises ``InfeasibleError`` without even splits."""
        _, analysis = self._parts.folded_graph_and_analysis(space.micro_batch, space.again)
        return self._builder(space).least_s(space.structure.allowed, self.cluster_multiplicities(analysis.clusters))

    def least_blocks_s(self, space: SubproblemKey) -> float:
        """Lower bound on ``whole_blocks`` without edge costs; -inf if no blocks are folded.

        Raises:
            InfeasibleError: without even splits.
        """
        if self.folding is None or (self.stages_share_hardware and space.stages > 1):
            return -math.inf
        _, analysis = self._parts.folded_graph_and_analysis(space.micro_batch, space.again)
        builder, allowed, clusters = self._builder(space), space.structure.allowed, analysis.clusters
        before_s, block_s, behind_s = (
            builder.least_s(allowed, [int(at in inner) for at in range(len(clusters))])
            for inner in split_by_blocks([cluster.name for cluster in clusters], self.folding)
        )
        return space.stages * least_fullest_stage_s(self.folding.count, space.stages, block_s, before_s, behind_s)

    def build(
        self,
        space: SubproblemKey,
        memory_limit_bytes: int | None,
        *,
        dominated: bool = False,
        cutoff_s: float = math.inf,
    ) -> Subproblem:
        """Build the search problem of a subproblem.

        Args:
            memory_limit_bytes: per device; None for no limit.
            dominated: keep layouts that no optimum needs.
            cutoff_s: drop some layouts whose assignments all cost more.

        Raises:
            InfeasibleError: no microbatch splits evenly, or the least memory of every op exceeds the limit.
        """
        slack_s = math.inf if cutoff_s == math.inf else max(0.0, cutoff_s - self.least_s(space))
        built = self._builder(space).build(
            memory_limit_bytes, space.structure.allowed, dominated=dominated, slack_s=slack_s
        )
        found: BuiltProblem | ExpandedProblem | None = built
        if self.folding is not None:
            found = expand_repeats(built, self.folding, self._parts.shapes)
            if found is None:  # the blocks differ after all
                self._parts, self._builders = self._parts_of(folds=False), {}
                return self.build(space, memory_limit_bytes, dominated=dominated, cutoff_s=cutoff_s)
        assert found is not None
        least = found.problem.fixed_memory_bytes + _least_bytes(found.problem)
        if memory_limit_bytes is not None and least > memory_limit_bytes:
            detail = f"even the least memory of every op does not fit at a microbatch of {space.micro_batch}"
            raise InfeasibleError("memory_limit_bytes", memory_limit_bytes, least, detail)
        return Subproblem(space, found)

    def strategy(self, layouts: Subproblem, assignment: tuple[int, ...]) -> Strategy:
        """The strategy of an assignment, on the mesh of one stage and without cuts."""
        space = layouts.key
        stores = self.parameter_costs(space)

        zones = self._parts.zones

        def splits(leaf: Parameter, used: NdSbp) -> bool:
            return stores.is_stored_split(leaf.meta, used, zone=zones.of_parameter(leaf.name))

        found = strategy_of(
            layouts.found, assignment, self.bound(space.micro_batch), self.boxing(space.view),
            global_batch=self.global_batch, micro_batch=space.micro_batch, optimizer=self.optimizer,
            gather="use" if space.storage == GATHER_PER_USE else "step",
            splits=None if space.storage == UNSHARDED else splits,
        )  # fmt: skip
        return replace(found, offload=self.offload, bucket_bytes=self.bucket_bytes)

    def parameter_costs(self, space: SubproblemKey) -> ParameterCosts:
        """Costs of parameters in a subproblem, and which of them are sharded beyond their use."""
        return self._builder(space).unary.main_parameter_costs

    def whole_blocks(self, layouts: Subproblem, solve: Callable[[SearchProblem], float]) -> float:
        """A cost bound from stages of whole blocks: the fullest stage's work, taken for all stages.

        The first and last stages also hold the parts before and after the blocks. -inf if no blocks are folded.

        Args:
            layouts: the subproblem.
            solve: lower bound of a problem.
        """
        parts, stages = self.block_parts(layouts, solve), layouts.key.stages
        if self.folding is None or parts is None:
            return -math.inf
        before_s, block_s, behind_s = parts
        return stages * least_fullest_stage_s(self.folding.count, stages, block_s, before_s, behind_s)

    def block_parts(
        self, layouts: Subproblem, solve: Callable[[SearchProblem], float]
    ) -> tuple[float, float, float] | None:
        """Bounds of the part before the blocks, of one block, and of the part after; None if no blocks are folded."""
        if self.folding is None or isinstance(layouts.found, BuiltProblem):
            return None
        before_s, behind_s = (solve(part) for part in end_parts(layouts.found))
        return before_s, solve(block_subproblem(layouts.found)), behind_s

    def op_seconds(self, layouts: Subproblem, assignment: tuple[int, ...]) -> Mapping[str, float]:
        """Cost of each op with the ops that follow its layout, including boxing of its inputs."""
        found, problem = layouts.found, layouts.problem
        names = _anchor_names(found)
        seconds: dict[str, float] = {}
        for name, costs, value in zip(names, problem.unary_s, assignment, strict=True):
            seconds[name] = seconds.get(name, 0.0) + float(costs[value])
        for edge in problem.edges:
            seconds[names[edge.v]] += float(edge.table[assignment[edge.u], assignment[edge.v]])
        return seconds

    def op_bytes(self, layouts: Subproblem, assignment: tuple[int, ...]) -> Mapping[str, int]:
        """Bytes of each op, with the ops that follow its layout, in a stage."""
        taken: dict[str, int] = {}
        for name, use, value in zip(
            _anchor_names(layouts.found), layouts.problem.memory_bytes, assignment, strict=True
        ):
            taken[name] = taken.get(name, 0) + int(use[value])
        return taken

    def stage_problem(
        self, structure: PipelineStructure, micro_batch: int, storages: Sequence[str], *, again: bool
    ) -> BuiltProblem:
        """The folded problem of a stage that processes all microbatches.

        Its ``detail`` has the costs of all the parameter shardings. Bytes are those of one microbatch; of checkpointed
        blocks, those of their inputs.

        Raises:
            InfeasibleError: no microbatch splits evenly.
        """
        graph, analysis = self._parts.folded_graph_and_analysis(micro_batch, again)
        level = min((axis.level for axis in structure.view.axes), default=0)
        count = float(self.global_batch // micro_batch)
        # Hidden communication slows compute down, unless communication of another level may hide it.
        slowdown = self._slowdown if len({axis.level for axis in structure.view.axes}) < 2 else 0.0
        # Count either all once-a-step communication without the passes it overlaps with, or these passes alone.
        part = 1.0 if structure.key in self.communication_bound else 0.0
        multipliers = OverlapWeights(part, part, part).multipliers(level, slowdown)
        weights = CostWeights(count, segment_internals=0.0, multipliers=multipliers)
        builder = ProblemBuilder(
            graph, self.boxing(structure.view), self.compute, num_micro=1, optimizer=self.optimizer,
            analysis=analysis, weights=weights, storage=storages[0], others=storages, message=self.message,
            offload=self.offload, bucket_bytes=self.sizes[-1],
        )  # fmt: skip
        return builder.build(None, structure.allowed)

    def _builder(self, space: SubproblemKey) -> ProblemBuilder:
        key = (space.stages, space.view, space.micro_batch, space.storage, space.again, space.overlap_weights)
        if key not in self._builders:
            graph, analysis = self._parts.folded_graph_and_analysis(space.micro_batch, space.again)
            weights = self.weights(space)
            self._builders[key] = ProblemBuilder(
                graph, self.boxing(space.view), self.compute, num_micro=self.num_micro(space), optimizer=self.optimizer,
                analysis=analysis, weights=weights, storage=space.storage, message=self.message,
                tables=self._tables.setdefault((space.view, space.micro_batch, space.again, weights), {}),
                offload=self.offload, bucket_bytes=self.sizes[-1],
            )  # fmt: skip
        return self._builders[key]


def least_fullest_stage_s(blocks: int, stages: int, block_s: float, before_s: float, behind_s: float) -> float:
    """Least work of the fullest stage over all partitions of the blocks, in seconds.

    Args:
        blocks: number of blocks.
        stages: number of stages.
        block_s: of each block.
        before_s: additional work of the first stage, which has at least one block.
        behind_s: additional work of the last stage.
    """
    return least_fullest_unlike_stage_s(blocks, [block_s] * stages, before_s, behind_s)


def least_fullest_unlike_stage_s(blocks: int, block_s: Sequence[float], before_s: float, behind_s: float) -> float:
    """``least_fullest_stage_s`` if a block takes different seconds on each stage."""
    if len(block_s) == 1:
        return before_s + blocks * block_s[0] + behind_s
    extras = (0.0, before_s, behind_s)
    levels = {extra + count * each for extra in extras for each in set(block_s) for count in range(blocks + 1)}
    inner = Counter(block_s[1:-1])

    def held(level: float) -> int:
        """Number of blocks that fit, with no stage above a level."""
        slack = level * (1 + 1e-12)
        first, last = (slack - before_s) // block_s[0], (slack - behind_s) // block_s[-1]
        if first < 1 or last < 0:
            return -1
        return int(first + last + sum(count * (slack // each) for each, count in inner.items()))

    free = min(block_s) <= 0
    return min((level for level in levels if free or held(level) >= blocks), default=-math.inf)


def _least_bytes(problem: SearchProblem) -> int:
    known: dict[int, int] = {}
    total = 0
    for use in problem.memory_bytes:
        if id(use) not in known:
            known[id(use)] = int(use.min())
        total += known[id(use)]
    return total


def _anchor_names(found: BuiltProblem | ExpandedProblem) -> list[str]:
    """Op or parameter of the whole graph that each variable belongs to."""
    if isinstance(found, BuiltProblem):
        return list(found.anchors)
    names = [""] * found.problem.num_variables
    for variable, anchor in enumerate(found.built.anchors):
        for at, block in found.copies[variable]:
            names[at] = found.names(variable, block)(anchor)
    return names
