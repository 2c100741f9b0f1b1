"""The layout problems of one plan: for stages of a kind, a microbatch and a way to store parameters, one search problem.

Layouts of one stage stand for those of all: a problem is over all ops of the model, weighed so that its cost is that of
the step. With p stages and m microbatches the slowest of equal stages works m/p of what one set of devices would, and
waits for p - 1 microbatches of the others (Narayanan et al. 2021, section 2.2), so that seconds of a microbatch count
(m + p - 1) / p times; what happens once a step, and state, count 1/p; activations min(m, p) / p times (1F1B).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosbp.beside import in_turn, spread
from autosbp.costmodel.alike import KnownChunks
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.folding import KEPT, Folding
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph, Parameter
from autosbp.handed import handed_over
from autosbp.plan import BUCKET_BYTES, Strategy
from autosbp.sbp.buckets import shared_message_bytes
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import NdSbp
from autosbp.search._base import SearchProblem
from autosbp.search.problem.assembly import Allowed
from autosbp.search.problem.build import BuiltProblem, ProblemBuilder
from autosbp.search.problem.clusters import OpCluster
from autosbp.search.problem.graph_parts import GraphParts
from autosbp.search.problem.parameters import ParameterCosts
from autosbp.search.problem.pinned import Pins
from autosbp.search.problem.strategy import strategy_of
from autosbp.search.problem.unfold import OUTSIDE, UnfoldedProblem, ends, one_block, parts_of, unfold
from autosbp.search.problem.weights import AS_USED, USE, Beside, Multipliers, Weights, hidden_slowdown
from autosbp.search.problem.zones import Zones
from autosbp.search.stages.crossings import crossing_bytes
from autosbp.search.stages.pipelines import waiting
from autosbp.search.stages.reuse import REUSE

FEW_OPS, MANY_OPS = 40, 150
"""Of a graph: in the time that a process takes to start, the problems of smaller ones than the first are solved, and
strategies of smaller ones than the second are costed."""


@handed_over
@dataclass(frozen=True, slots=True)
class Exposure:
    """What counts of messages beside passes (``weights.Beside``): gathers beside forward, reductions beside backward, and those
    of early ops beside either, each over links of a level; from 0, where all may be hidden, to 1, where none is. With ``whole``
    all counts, beside all that it runs beside: no bound, but mostly an optimum that communicates little.
    """

    gather: float = 0.0
    reduce: float = 0.0
    early: float = 1.0
    gather_level: int = 0
    reduce_level: int = 0
    early_level: int = 0
    whole: bool = False

    def multipliers(self, level: int, slowdown: float) -> Multipliers | None:
        """Those of a problem; ``level`` is that of the slowest links, from which levels here are counted on."""
        if self.whole:
            return None
        passes = ((self.gather, self.gather_level), (self.reduce, self.reduce_level))
        forward, backward = (
            Beside(part, max(part, self.early), level + own, level + self.early_level) for part, own in passes
        )
        return Multipliers(forward, backward, level, slowdown)


@dataclass(frozen=True)
class Structure:
    """Equal stages, and the view of one stage's mesh that layouts are chosen on; of all layouts, or those ``allowed``."""

    stages: int
    view: Mesh
    allowed: Allowed | None = None

    @property
    def key(self) -> Hashable:
        """Of one search: as what is allowed there is told apart by identity."""
        return self.stages, self.view, id(self.allowed)


SpaceKey = tuple[Hashable, int, str, bool, Exposure]


@dataclass(frozen=True)
class Space:
    """What one search problem holds; ``again``: every repeated block is recomputed, each by itself."""

    structure: Structure
    micro_batch: int
    storage: str
    again: bool = False
    exposure: Exposure = Exposure()

    @property
    def key(self) -> SpaceKey:
        """Of one search, as that of its structure."""
        return self.structure.key, self.micro_batch, self.storage, self.again, self.exposure

    @property
    def stages(self) -> int:
        return self.structure.stages

    @property
    def view(self) -> Mesh:
        return self.structure.view


@dataclass(frozen=True)
class Layouts:
    """A problem over all layers, and what it was unfolded from, if it was."""

    space: Space
    found: BuiltProblem | UnfoldedProblem

    @property
    def problem(self) -> SearchProblem:
        return self.found.problem

    @property
    def built(self) -> BuiltProblem:
        return self.found if isinstance(self.found, BuiltProblem) else self.found.built


class LayoutProblems:
    """Builds them; equal parts are built once. ``exposed`` are structures, by their keys, in which more moves once a step than
    a microbatch hides, by about. With ``offload``, the optimizer's state is on the host. Of the ``sizes`` of
    messages of gradients, seconds are those of the first, the largest, and bytes those of the last."""

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
        self.message = shared_message_bytes(graph, sizes[0])
        self.known_chunks = KnownChunks(spread if len(graph.nodes) >= MANY_OPS else in_turn)
        self._parts = self._parts_of(folds=not pins)
        self._boxing: dict[Mesh, BoxingModel] = {}
        self._builders: dict[tuple[int, Mesh, int, str, bool, Exposure], ProblemBuilder] = {}
        self._tables: dict[tuple[Mesh, int, bool, Weights], dict[Hashable, NDArray[np.float64]]] = {}
        self._slowdown = hidden_slowdown(compute.overlap)
        self.exposed: set[Hashable] = set()
        self._crossings: dict[int, NDArray[np.float64]] = {}

    def _parts_of(self, *, folds: bool) -> GraphParts:
        stored, counts = frozenset(self.pins.stored), self.network.cluster.mesh().split_counts
        return REUSE.parts(self.graph, self.pins.names, stored, counts, folds=folds)

    @property
    def folding(self) -> Folding | None:
        return self._parts.folding

    @property
    def starts(self) -> frozenset[str] | None:
        """The ops that a stage may begin with; None is any."""
        return self._parts.starts

    @property
    def blocks(self) -> tuple[tuple[str, ...], ...]:
        """The ops of each block that may be recomputed."""
        return self._parts.blocks

    @property
    def zones(self) -> Zones:
        """Where ops are in a pass."""
        return self._parts.zones

    def bound(self, micro_batch: int) -> LogicalGraph:
        """The whole graph at a microbatch."""
        return self._parts.bound(micro_batch)

    def crossing(self, micro_batch: int) -> NDArray[np.float64]:
        """Bytes that go over each place between two ops, see ``crossing_bytes``."""
        if micro_batch not in self._crossings:
            self._crossings[micro_batch] = crossing_bytes(self.bound(micro_batch))
        return self._crossings[micro_batch]

    @property
    def is_shared(self) -> bool:
        """Whether stages may share hardware: what one of them leaves others take."""
        return self.compute.sharing is not None

    @property
    def most_stages(self) -> int:
        """Stages hold one repeated block at least; of a model without, an op."""
        if self.folding is not None:
            return self.folding.count
        return sum(node.name in self.graph.computed for node in self.graph.nodes)

    @property
    def pays_to_share(self) -> bool:
        """Whether its problems take so long that another process is worth its start."""
        return len(self.graph.nodes) >= FEW_OPS

    def boxing(self, view: Mesh) -> BoxingModel:
        if view not in self._boxing:
            self._boxing[view] = REUSE.boxing(self.network, view, self.compute.copy_bytes_per_s)
        return self._boxing[view]

    def num_micro(self, space: Space) -> int:
        return self.global_batch // space.micro_batch

    def waits(self, stages: int, num_micro: int) -> float:
        """Microbatches that a stage waits for others, as its problem has it: as few as the schedules may come to, by about."""
        return (stages - 1) * waiting(stages, num_micro, self.schedules, self.most_stages)

    def weights(self, space: Space) -> Weights:
        count, stages = self.num_micro(space), space.stages
        held = min(count, stages)
        micro, once = (count + self.waits(stages, count)) / stages, 1 / stages
        level = min((axis.level for axis in space.view.axes), default=0)
        weights = Weights(
            micro, once, 1 / stages, held / stages,
            multipliers=space.exposure.multipliers(level, self._slowdown),
            passes=micro if space.storage == USE else once,
        )  # fmt: skip
        if not space.again:
            return weights
        # While one block is recomputed, of its microbatch those before it have handed their inputs over: half, on average.
        own = max(1.0, len(self.blocks) / stages)
        handed = (held - 1 + (own + 1) / (2 * own)) / stages
        return replace(weights, handed=handed, working=1 / len(self.blocks))

    def least_memory(self, space: Space) -> int:
        """Bytes that no strategy of the space goes below; raises ``InfeasibleError`` without even splits."""
        _, analysis = self._parts.smaller(space.micro_batch, space.again)
        return self._builder(space).least_memory(space.structure.allowed, self.copies(analysis.clusters))

    def num_clusters(self, micro_batch: int) -> int:
        """Of problems before they are unfolded."""
        return len(self._parts.smaller(micro_batch, again=False)[1].clusters)

    def copies(self, clusters: Sequence[OpCluster]) -> list[int]:
        """How many clusters of the whole model each one stands for, of a problem before it is unfolded."""
        if self.folding is None:
            return [1] * len(clusters)
        times = {OUTSIDE: 1, 0: 1, 1: self.folding.count - 2, 2: 0, KEPT - 1: 1}
        return [times[self.folding.block_of.get(cluster.name, OUTSIDE)] for cluster in clusters]

    def least_s(self, space: Space) -> float:
        """The cost that no assignment of its problem goes below, known without any edge; raises ``InfeasibleError`` without
        even splits."""
        _, analysis = self._parts.smaller(space.micro_batch, space.again)
        return self._builder(space).least_s(space.structure.allowed, self.copies(analysis.clusters))

    def least_blocks_s(self, space: Space) -> float:
        """What ``whole_blocks`` does not go below, known without any edge; -inf where nothing is folded. Raises as
        ``least_s``."""
        if self.folding is None or (self.is_shared and space.stages > 1):
            return -math.inf
        _, analysis = self._parts.smaller(space.micro_batch, space.again)
        builder, allowed, clusters = self._builder(space), space.structure.allowed, analysis.clusters
        before_s, block_s, behind_s = (
            builder.least_s(allowed, [int(at in inner) for at in range(len(clusters))])
            for inner in parts_of([cluster.name for cluster in clusters], self.folding)
        )
        return space.stages * fullest_stage(self.folding.count, space.stages, block_s, before_s, behind_s)

    def build(
        self,
        space: Space,
        memory_limit_bytes: int | None,
        *,
        dominated: bool = False,
        cutoff_s: float = math.inf,
    ) -> Layouts:
        """The problem of a space, if ``dominated`` with layouts that no optimum needs, and less some of which each assignment
        costs more than ``cutoff_s``; raises ``InfeasibleError`` where no microbatch splits evenly, or the least memory of
        every op exceeds the limit."""
        slack_s = math.inf if cutoff_s == math.inf else max(0.0, cutoff_s - self.least_s(space))
        built = self._builder(space).build(
            memory_limit_bytes, space.structure.allowed, dominated=dominated, slack_s=slack_s
        )
        found: BuiltProblem | UnfoldedProblem | None = built
        if self.folding is not None:
            found = unfold(built, self.folding, self._parts.shapes)
            if found is None:  # blocks that are not alike after all
                self._parts, self._builders = self._parts_of(folds=False), {}
                return self.build(space, memory_limit_bytes, dominated=dominated, cutoff_s=cutoff_s)
        assert found is not None
        least = found.problem.fixed_memory_bytes + _least(found.problem)
        if memory_limit_bytes is not None and least > memory_limit_bytes:
            detail = f"even the least memory of every op does not fit at a microbatch of {space.micro_batch}"
            raise InfeasibleError("memory_limit_bytes", memory_limit_bytes, least, detail)
        return Layouts(space, found)

    def strategy(self, layouts: Layouts, assignment: tuple[int, ...]) -> Strategy:
        """What an assignment stands for, on the mesh of one stage and without cuts."""
        space = layouts.space
        stores = self.stores(space)

        zones = self._parts.zones

        def splits(leaf: Parameter, used: NdSbp) -> bool:
            return stores.splits(leaf.meta, used, zone=zones.of_parameter(leaf.name))

        found = strategy_of(
            layouts.found, assignment, self.bound(space.micro_batch), self.boxing(space.view),
            global_batch=self.global_batch, micro_batch=space.micro_batch, optimizer=self.optimizer,
            gather="use" if space.storage == USE else "step",
            splits=None if space.storage == AS_USED else splits,
        )  # fmt: skip
        return replace(found, offload=self.offload, bucket_bytes=self.bucket_bytes)

    def stores(self, space: Space) -> ParameterCosts:
        """What parameters cost in a space, and which are stored apart from their use."""
        return self._builder(space).unary.stores

    def whole_blocks(self, layouts: Layouts, solve: Callable[[SearchProblem], float]) -> float:
        """A bound from stages that hold whole blocks, the first and the last one what lies before and behind these, too: what
        the fullest has to do, taken for all. ``solve`` gives a bound of a problem. -inf where nothing is folded."""
        parts, stages = self.block_parts(layouts, solve), layouts.space.stages
        if self.folding is None or parts is None:
            return -math.inf
        before_s, block_s, behind_s = parts
        return stages * fullest_stage(self.folding.count, stages, block_s, before_s, behind_s)

    def block_parts(
        self, layouts: Layouts, solve: Callable[[SearchProblem], float]
    ) -> tuple[float, float, float] | None:
        """Bounds of what comes before the blocks, of one of them, and of what follows; None where nothing is folded."""
        if self.folding is None or isinstance(layouts.found, BuiltProblem):
            return None
        before_s, behind_s = (solve(part) for part in ends(layouts.found))
        return before_s, solve(one_block(layouts.found)), behind_s

    def op_seconds(self, layouts: Layouts, assignment: tuple[int, ...]) -> Mapping[str, float]:
        """What each op, with those that follow its layout, adds to the cost, boxing of what it reads included."""
        found, problem = layouts.found, layouts.problem
        names = _anchor_names(found)
        seconds: dict[str, float] = {}
        for name, costs, value in zip(names, problem.unary_s, assignment, strict=True):
            seconds[name] = seconds.get(name, 0.0) + float(costs[value])
        for edge in problem.edges:
            seconds[names[edge.v]] += float(edge.table[assignment[edge.u], assignment[edge.v]])
        return seconds

    def op_bytes(self, layouts: Layouts, assignment: tuple[int, ...]) -> Mapping[str, int]:
        """What each op, with those that follow its layout, adds to the memory of a stage."""
        taken: dict[str, int] = {}
        for name, use, value in zip(
            _anchor_names(layouts.found), layouts.problem.memory_bytes, assignment, strict=True
        ):
            taken[name] = taken.get(name, 0) + int(use[value])
        return taken

    def stage_problem(
        self, structure: Structure, micro_batch: int, storages: Sequence[str], *, again: bool
    ) -> BuiltProblem:
        """The problem of a stage that works off all microbatches, before it is unfolded, with the costs of all these ways to
        store parameters in its ``detail``. Bytes are those of one microbatch; of recomputed blocks what they are handed. Raises
        ``InfeasibleError`` where no microbatch splits evenly."""
        graph, analysis = self._parts.smaller(micro_batch, again)
        level = min((axis.level for axis in structure.view.axes), default=0)
        count = float(self.global_batch // micro_batch)
        # What is hidden behind computation slows it down; where it may be hidden behind messages of another level it does not.
        slowdown = self._slowdown if len({axis.level for axis in structure.view.axes}) < 2 else 0.0
        # All that moves once a step, without the passes that it moves beside, or these alone.
        part = 1.0 if structure.key in self.exposed else 0.0
        multipliers = Exposure(part, part, part).multipliers(level, slowdown)
        weights = Weights(count, working=0.0, multipliers=multipliers)
        builder = ProblemBuilder(
            graph, self.boxing(structure.view), self.compute, num_micro=1, optimizer=self.optimizer,
            analysis=analysis, weights=weights, storage=storages[0], others=storages, message=self.message,
            offload=self.offload, bucket_bytes=self.sizes[-1],
        )  # fmt: skip
        return builder.build(None, structure.allowed)

    def _builder(self, space: Space) -> ProblemBuilder:
        key = (space.stages, space.view, space.micro_batch, space.storage, space.again, space.exposure)
        if key not in self._builders:
            graph, analysis = self._parts.smaller(space.micro_batch, space.again)
            weights = self.weights(space)
            self._builders[key] = ProblemBuilder(
                graph, self.boxing(space.view), self.compute, num_micro=self.num_micro(space), optimizer=self.optimizer,
                analysis=analysis, weights=weights, storage=space.storage, message=self.message,
                tables=self._tables.setdefault((space.view, space.micro_batch, space.again, weights), {}),
                offload=self.offload, bucket_bytes=self.sizes[-1],
            )  # fmt: skip
        return self._builders[key]


def fullest_stage(blocks: int, stages: int, block_s: float, before_s: float, behind_s: float) -> float:
    """The least that the fullest stage can have to do, of all ways to deal out blocks.

    Args:
        block_s: of each block.
        before_s, behind_s: more for the first stage, which has one block at least, and for the last.
    """
    return fullest_of(blocks, [block_s] * stages, before_s, behind_s)


def fullest_of(blocks: int, block_s: Sequence[float], before_s: float, behind_s: float) -> float:
    """``fullest_stage`` of stages on each of which a block takes so many seconds."""
    if len(block_s) == 1:
        return before_s + blocks * block_s[0] + behind_s
    extras = (0.0, before_s, behind_s)
    levels = {extra + count * each for extra in extras for each in set(block_s) for count in range(blocks + 1)}
    inner = Counter(block_s[1:-1])

    def held(level: float) -> int:
        """Blocks that fit, with no stage above a level."""
        slack = level * (1 + 1e-12)
        first, last = (slack - before_s) // block_s[0], (slack - behind_s) // block_s[-1]
        if first < 1 or last < 0:
            return -1
        return int(first + last + sum(count * (slack // each) for each, count in inner.items()))

    free = min(block_s) <= 0
    return min((level for level in levels if free or held(level) >= blocks), default=-math.inf)


def _least(problem: SearchProblem) -> int:
    known: dict[int, int] = {}
    total = 0
    for use in problem.memory_bytes:
        if id(use) not in known:
            known[id(use)] = int(use.min())
        total += known[id(use)]
    return total


def _anchor_names(found: BuiltProblem | UnfoldedProblem) -> list[str]:
    """The op or parameter of the whole graph that each variable belongs to."""
    if isinstance(found, BuiltProblem):
        return list(found.anchors)
    names = [""] * found.problem.num_variables
    for variable, anchor in enumerate(found.built.anchors):
        for at, block in found.copies[variable]:
            names[at] = found.names(variable, block)(anchor)
    return names
