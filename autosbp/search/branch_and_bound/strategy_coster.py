"""Costs of the strategies of a subproblem, with as much activation checkpointing as memory requires."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import ceil

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.offload import host_bytes, host_of
from autosbp.costmodel.p2p_cost import LinkModel
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Costs, Strategy
from autosbp.search import SearchResult
from autosbp.search.branch_and_bound.bucket_sizes import best_bucket_size, with_smaller_buckets
from autosbp.search.branch_and_bound.candidate import Candidate, CostedStrategy, OversizedStrategy, fastest
from autosbp.search.branch_and_bound.checkpointing import StrategyCheckpointing
from autosbp.search.branch_and_bound.clock import OutOfTimeError
from autosbp.search.branch_and_bound.context import SearchContext
from autosbp.search.branch_and_bound.wgrad_lag import with_shorter_wgrad_lag
from autosbp.search.stages.layout_problems import PipelineStructure, Subproblem, SubproblemKey
from autosbp.search.stages.schedule_candidates import pipelined_strategies, shortlist
from autosbp.search.stages.stage_pins import read_stages

ESTIMATE_CUTOFF = 1.01
"""Estimated step time relative to the incumbent, above which a strategy is not costed."""
BUCKET_SIZE_CUTOFF = 1.03
"""Step time relative to the best, up to which other bucket sizes are tried."""
UNEVEN_CUTOFF = 1.1
"""Step time relative to the incumbent, up to which uneven checkpointing is tried."""
MAX_CHECKPOINTING_SLOWDOWN = 4 / 3
"""Largest slowdown by checkpointing: backward takes twice as long as forward."""


class StrategyCoster:
    """Costs strategies of subproblems.

    Args:
        context: of the search.
        costs_all: also cost strategies that exceed the memory limit.

    Attributes:
        stages_alike: stages differ only in the number of microbatches in flight.
        known_costs: recent strategies with their costs. Searches may share them, as they often reach the same
            strategies.
        held: stages of ops that the user gave.
        recut: since it was last reset, a strategy fitted only by the choice of its cuts.
    """

    stages_alike = True

    def __init__(self, context: SearchContext, *, costs_all: bool = False) -> None:
        self.context, self.problems = context, context.problems
        self.clock, self.incumbent = context.clock, context.incumbent
        self.costs_all, self.needed_tighter_cuts = costs_all, False
        self.links = LinkModel(self.problems.network, self.problems.compute.copy_bytes_per_s)
        self.held = read_stages(self.problems.graph, context.options.stage_of)
        self.known_costs: deque[Candidate] = deque(maxlen=8)

    def fastest_fitting(self, candidates: Iterable[CostedStrategy | None]) -> Candidate | None:
        """The fastest candidate that fits."""
        return fastest(each for each in candidates if isinstance(each, Candidate) and self.has_room(each))

    def has_room(self, candidate: Candidate) -> bool:
        """Whether a strategy fits on the device, and what it offloads on the host."""
        return candidate.costs.memory_bytes_per_device <= self.context.limit and self.host_has_room(candidate.strategy)

    def host_has_room(self, strategy: Strategy) -> bool:
        """Whether the host can hold what the strategy offloads."""
        return not strategy.offload or self.host_needs(strategy) <= host_of(self.problems.network.cluster).memory_bytes

    def host_needs(self, strategy: Strategy) -> int:
        """Offloaded bytes of one device; the stages of a pipeline hold about equal parts."""
        return ceil(host_bytes(self.problems.graph.trained, strategy) / strategy.num_stages)

    def fitting(self, space: SubproblemKey, candidates: Iterable[CostedStrategy]) -> Candidate | None:
        """The fastest candidate that fits; remembers if none does."""
        costed = list(candidates)
        fitting = self.fastest_fitting(costed)
        if fitting is None:
            self.record_over_limit(space, costed)
        return fitting

    def is_oversized_but_faster(self, candidates: Sequence[CostedStrategy], best: Candidate | None) -> bool:
        """Whether the candidate with the lowest estimate does not fit and is faster than ``best``."""
        first = candidates[0]
        if not isinstance(first, Candidate) or self.has_room(first):
            return best is None
        return best is None or first.costs.step_time_s * ESTIMATE_CUTOFF < best.costs.step_time_s

    def tightened_limit(self, limit: int, result: SearchResult, candidates: Sequence[CostedStrategy]) -> int:
        """A lower memory limit under which the candidate with the lowest estimate should fit."""
        needed = candidates[0].memory_bytes
        return min(limit, result.memory_bytes) - 2 * (needed - self.context.limit)

    def record_over_limit(self, space: SubproblemKey, candidates: Sequence[CostedStrategy]) -> None:
        """Remember that the peak memory of these exceeds the limit, although their sum over ops fits."""
        if candidates and not space.again:
            self.context.findings.over_limit.add((space.structure.key, space.micro_batch))

    def was_over_limit(self, structure: PipelineStructure, micro_batches: Iterable[int]) -> bool:
        """Whether ``exceed`` was called for the structure at one of these microbatch sizes."""
        return any((structure.key, size) in self.context.findings.over_limit for size in micro_batches)

    def checkpointing_slowdown(self, space: SubproblemKey) -> float:
        """Largest step time with all blocks checkpointed, relative to the incumbent, if fewer blocks may suffice."""
        return MAX_CHECKPOINTING_SLOWDOWN if space.again and not self.context.options.recompute else 1.0

    def once(self, space: SubproblemKey) -> float:
        """Fraction of a problem's cost that remains at least, if not all its checkpointed blocks need it."""
        return 0.5 if space.again and not self.context.options.recompute else 1.0

    def candidates(
        self, layouts: Subproblem, result: SearchResult, schedules: tuple[str, ...] | None = None
    ) -> Iterable[CostedStrategy]:
        """The strategy of an assignment; with pipeline stages, one for each schedule, lowest estimate first.

        Args:
            layouts: the subproblem.
            result: with the assignment.
            schedules: names of the schedules to use; those of the options by default.
        """
        space, problems = layouts.key, self.problems
        graph = problems.bound(space.micro_batch)
        strategy = problems.strategy(layouts, result.assignment)
        found: list[tuple[float, Strategy]] = [(0.0, strategy)]
        if space.stages > 1:
            scale = 1 / problems.weights(space).micro
            seconds = {name: scale * spent for name, spent in problems.op_seconds(layouts, result.assignment).items()}
            kinds = schedules or self.context.options.schedules
            every = pipelined_strategies(
                graph, strategy, seconds, space.stages, self.links, kinds, problems.starts, self.held,
                below_s=ESTIMATE_CUTOFF * self.incumbent.cutoff_s * self.checkpointing_slowdown(space),
            )  # fmt: skip
            found = shortlist([*every])
        return self.cost_in_turn(space, found)

    def cost_in_turn(self, space: SubproblemKey, found: Iterable[tuple[float, Strategy]]) -> Iterator[CostedStrategy]:
        """Cost strategies in turn, until one fits or no other may beat the incumbent.

        With checkpointing, estimates assume that all blocks are checkpointed. Another schedule may keep less, and so
        checkpoint fewer blocks.

        Args:
            space: the subproblem.
            found: strategies with their estimated step times in seconds.
        """
        graph, boxing = self.problems.bound(space.micro_batch), self.problems.boxing(space.view)
        least = self.incumbent.cutoff_s

        def costs(strategy: Strategy) -> Costs:
            return self.costs(graph, strategy, boxing)

        for estimate, each in found:
            if estimate >= ESTIMATE_CUTOFF * least * self.checkpointing_slowdown(space):
                return
            if space.again:
                slowest = UNEVEN_CUTOFF * ESTIMATE_CUTOFF * least
                again = StrategyCheckpointing(self.problems, self.context.options.recompute, self.context.limit)
                made = again.apply_if_useful(each, partial(_is_quicker, slowest, estimate))
                if made is None:
                    continue
                each = made
                excess = 0 if self.costs_all else again.excess_bytes(each)
                if excess:
                    yield OversizedStrategy(each, self.context.limit + excess)
                    continue
            each = with_shorter_wgrad_lag(
                graph, each, self.context.limit, self.problems.network.cluster.device.kind, self.problems.known_chunks
            )
            candidate = with_smaller_buckets(
                Candidate(each, costs(each)), self.problems.sizes, costs, self.has_room, self.context.limit
            )
            yield candidate
            if candidate.costs.memory_bytes_per_device <= self.context.limit:
                least = min(least, candidate.costs.step_time_s)
                if self.checkpointing_slowdown(space) == 1.0 or not candidate.strategy.recompute:
                    return

    def choose_bucket_sizes(self) -> None:
        """Try other bucket sizes for the best strategies, as far as time allows."""
        for candidate in list(self.incumbent.near):
            is_near = candidate.costs.step_time_s <= BUCKET_SIZE_CUTOFF * self.incumbent.near[0].costs.step_time_s
            if is_near and not self.clock.stopped:
                self.context.keep(self.with_best_bucket_size(candidate))

    def with_best_bucket_size(self, candidate: Candidate) -> Candidate:
        """The strategy with its fastest bucket size, of those tried before time is over."""
        strategy = candidate.strategy
        graph, boxing = self.problems.bound(strategy.micro_batch), self.problems.boxing(strategy.mesh)

        def tried() -> Iterator[Candidate]:
            for size in self.problems.sizes:
                if size != strategy.bucket_bytes:
                    changed = replace(strategy, bucket_bytes=size)
                    with suppress(OutOfTimeError):
                        yield Candidate(changed, self.costs(graph, changed, boxing))

        return best_bucket_size(candidate, filter(self.has_room, tried()))

    def costs(self, graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel) -> Costs:
        """Costs of a strategy, cached because baselines and search often reach the same one.

        Raises:
            OutOfTimeError: as ``Clock.require_time``.
        """
        for known in self.known_costs:
            if known.strategy == strategy:
                return known.costs
        self.clock.require_time()
        costs = evaluate(graph, strategy, boxing, self.problems.compute, self.problems.known_chunks)
        self.known_costs.append(Candidate(strategy, costs))
        return self.known_costs[-1].costs


def _is_quicker(than_s: float, estimate_s: float, kept: float) -> bool:
    """Whether a strategy may be faster than ``than_s`` if a fraction ``kept`` of its blocks needs no checkpointing.

    ``estimate_s`` is its estimated step time with all blocks checkpointed.
    """
    return estimate_s * (1 - kept * (1 - 1 / MAX_CHECKPOINTING_SLOWDOWN)) < than_s
