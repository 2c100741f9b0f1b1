"""Strategies of one space after another: costed, with as much recomputed as memory asks for, and the best that fits kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from math import ceil

from autosbp.beside import is_child
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.deliveries import LinkModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.costmodel.offload import host_bytes, host_of
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Costs, Strategy
from autosbp.search import SearchResult
from autosbp.search.plan_options import PlanOptions
from autosbp.search.space.candidate import Candidate, TooLarge, Tried
from autosbp.search.space.earlier_weights import with_earlier_weights
from autosbp.search.space.message_sizes import best_messages, with_smaller_messages
from autosbp.search.space.recompute import Recomputation
from autosbp.search.space.timed import OutOfTimeError, Timed
from autosbp.search.stages.layouts import LayoutProblems, Layouts, Space, Structure
from autosbp.search.stages.pipelines import pipelines, shortlist
from autosbp.search.stages.stage_pins import read_stages

CERTAIN = 1.01
"""A pipeline whose estimate is so many times what the best takes is not looked into."""
ROUNDING = 1e-12
"""Of two strategies that differ by so little the first found stays."""
INFINITE = float("inf")
FEW, NEARLY = 3, 1.03
"""So many strategies are looked at with messages of other sizes, where they take no more than so many times the best step."""
UNEVEN_GAIN = 1.1
"""How many times what the best takes a strategy may take that is made uneven."""
RECOMPUTED = 4 / 3
"""The most that recomputation makes of a step: backward takes twice what forward does."""


class Costing(Timed):
    """Costs strategies, and keeps the best.

    Args:
        limit: bytes per device.
        deadline: see ``Timed``.
        report: told the best step time of a strategy so far, inf before there is one; when it returns False, the search
            ends as at the deadline.
        costs_all: what exceeds the limit, too.
    """

    costs_all = False

    def __init__(
        self,
        problems: LayoutProblems,
        options: PlanOptions,
        limit: int,
        deadline: float,
        report: Callable[[float], bool] | None,
    ) -> None:
        self.problems, self.options, self.limit = problems, options, limit
        self.set_deadline(deadline)
        self.report = report
        self.links = LinkModel(problems.network, problems.compute.copy_bytes_per_s)
        self.recomputes = _recomputes(problems, options)
        self.best: Candidate | None = None
        self.problem: InfeasibleError | None = None
        self.failures: list[InfeasibleError] = []
        self._known_costs: deque[Candidate] = deque(maxlen=8)
        self._exceeding: set[tuple[Hashable, int]] = set()
        self._near: list[Candidate] = []

    def share_costs(self, other: Costing) -> None:
        """Know what another search costs, and the other way round: they often come to the same strategies."""
        self._known_costs = other._known_costs

    @cached_property
    def _held(self) -> Mapping[str, int]:
        """Stages of ops that are given."""
        return read_stages(self.problems.graph, self.options.stage_of)

    def _fits(self, candidates: Iterable[Tried]) -> Candidate | None:
        """The quickest of those that fit."""
        fitting = [each for each in candidates if isinstance(each, Candidate) and self.has_room(each)]
        return min(fitting, key=lambda each: each.costs.step_time_s, default=None)

    def has_room(self, candidate: Candidate) -> bool:
        """On the device, and on the host for what is offloaded."""
        return candidate.costs.memory_bytes_per_device <= self.limit and self.host_has_room(candidate.strategy)

    def host_has_room(self, strategy: Strategy) -> bool:
        """For what is offloaded to it."""
        return not strategy.offload or self.host_needs(strategy) <= host_of(self.problems.network.cluster).memory_bytes

    def host_needs(self, strategy: Strategy) -> int:
        """Bytes of what is offloaded, of one device; a pipeline's stages hold about equal parts."""
        return ceil(host_bytes(self.problems.graph.trained, strategy) / strategy.num_stages)

    def _fitting(self, space: Space, candidates: Iterable[Tried]) -> Candidate | None:
        """The quickest of those that fit. That none does is remembered."""
        costed = list(candidates)
        fitting = self._fits(costed)
        if fitting is None:
            self._exceed(space, costed)
        return fitting

    def _exceed(self, space: Space, candidates: Sequence[Tried]) -> None:
        """Remember that these take more at their fullest moment than there is, though search thought that they fit."""
        if candidates and not space.again:
            self._exceeding.add((space.structure.key, space.micro_batch))

    def _exceeds(self, structure: Structure, micro_batches: Iterable[int]) -> bool:
        """Whether strategies of it did at some of these."""
        return any((structure.key, size) in self._exceeding for size in micro_batches)

    def _spare(self, space: Space) -> float:
        """How many times slower than the best a strategy may be that recomputes all, when fewer blocks might do."""
        return RECOMPUTED if space.again and not self.options.recompute else 1.0

    def _once(self, space: Space) -> float:
        """What part of a problem's cost is left, at the least, where not all is recomputed that the problem recomputes."""
        return 0.5 if space.again and not self.options.recompute else 1.0

    def _candidates(
        self, layouts: Layouts, result: SearchResult, schedules: tuple[str, ...] | None = None
    ) -> Iterable[Tried]:
        """The strategy of an assignment; of stages, with each schedule, or some of them, the quickest by estimate first."""
        space, problems = layouts.space, self.problems
        graph = problems.bound(space.micro_batch)
        strategy = problems.strategy(layouts, result.assignment)
        found: list[tuple[float, Strategy]] = [(0.0, strategy)]
        if space.stages > 1:
            scale = 1 / problems.weights(space).micro
            seconds = {name: scale * spent for name, spent in problems.op_seconds(layouts, result.assignment).items()}
            kinds = schedules or self.options.schedules
            every = pipelines(
                graph, strategy, seconds, space.stages, self.links, kinds, problems.starts, self._held,
                below_s=CERTAIN * self._cutoff * self._spare(space),
            )  # fmt: skip
            found = shortlist([*every])
        return self._costed(space, found)

    def _costed(self, space: Space, found: Iterable[tuple[float, Strategy]]) -> Iterator[Tried]:
        """Strategies of a space, with what each takes by estimate, until one fits or none is better than the best known. Where
        blocks are recomputed, estimates are of all of them: another schedule may keep less, and recompute fewer."""
        graph, boxing = self.problems.bound(space.micro_batch), self.problems.boxing(space.view)
        least = self._cutoff

        def costs(strategy: Strategy) -> Costs:
            return self._costs(graph, strategy, boxing)

        for estimate, each in found:
            if estimate >= CERTAIN * least * self._spare(space):
                return
            if space.again:
                slowest = UNEVEN_GAIN * CERTAIN * least
                again = Recomputation(self.problems, self.options.recompute, self.limit)
                made = again.of_use(each, partial(_is_quicker, slowest, estimate))
                if made is None:
                    continue
                each = made
                excess = 0 if self.costs_all else again.excess_bytes(each)
                if excess:
                    yield TooLarge(each, self.limit + excess)
                    continue
            each = with_earlier_weights(
                graph, each, self.limit, self.problems.network.cluster.device.kind, self.problems.known_chunks
            )
            candidate = with_smaller_messages(
                Candidate(each, costs(each)), self.problems.sizes, costs, self.has_room, self.limit
            )
            yield candidate
            if candidate.costs.memory_bytes_per_device <= self.limit:
                least = min(least, candidate.costs.step_time_s)
                if self._spare(space) == 1.0 or not candidate.strategy.recompute:
                    return

    def choose_messages(self) -> None:
        """Keep the best strategy with messages of the size with which it is quickest, or another that is nearly as quick, as
        far as time allows."""
        for candidate in list(self._near):
            is_near = candidate.costs.step_time_s <= NEARLY * self._near[0].costs.step_time_s
            if is_near and not self.stopped:
                self._keep(self.with_messages(candidate))

    def with_messages(self, candidate: Candidate) -> Candidate:
        """A strategy with messages of the size with which it is quickest, of those that are tried until time is over."""
        strategy = candidate.strategy
        graph, boxing = self.problems.bound(strategy.micro_batch), self.problems.boxing(strategy.mesh)

        def tried() -> Iterator[Candidate]:
            for size in self.problems.sizes:
                if size != strategy.bucket_bytes:
                    changed = replace(strategy, bucket_bytes=size)
                    with suppress(OutOfTimeError):
                        yield Candidate(changed, self._costs(graph, changed, boxing))

        return best_messages(candidate, filter(self.has_room, tried()))

    def _costs(self, graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel) -> Costs:
        """Of a strategy; baselines and search often come to the same one. Raises ``OutOfTimeError``."""
        for known in self._known_costs:
            if known.strategy == strategy:
                return known.costs
        self.require_time()
        costs = evaluate(graph, strategy, boxing, self.problems.compute, self.problems.known_chunks)
        self._known_costs.append(Candidate(strategy, costs))
        return self._known_costs[-1].costs

    def _tell(self) -> bool:
        """Tell of the best strategy so far: a problem's cost is none, as it may exceed the memory. Whether to go on."""
        if self.report is not None and not self.stopped and not is_child():
            self.stopped = not self.report(self._cutoff)
        return not self.stopped

    @property
    def _cutoff(self) -> float:
        return INFINITE if self.best is None else self.best.costs.step_time_s

    def _keep(self, candidate: Candidate | None) -> None:
        if candidate is None:
            return
        if not any(candidate.strategy == each.strategy for each in self._near):
            self._near = sorted([*self._near, candidate], key=lambda each: each.costs.step_time_s)[:FEW]
        if candidate.costs.step_time_s < self._cutoff * (1 - ROUNDING):
            self.best = candidate
            self._tell()


def _is_quicker(than_s: float, estimate_s: float, kept: float) -> bool:
    """Whether a strategy may be, that takes so long by estimate with all blocks recomputed, if a part of them is kept."""
    return estimate_s * (1 - kept * (1 - 1 / RECOMPUTED)) < than_s


def _recomputes(problems: LayoutProblems, options: PlanOptions) -> tuple[bool, ...]:
    """Whether blocks are recomputed: what is tried, one after the other; raises ``InfeasibleError``."""
    if options.recompute == 0:
        return (False,)
    if options.recompute:
        if not problems.blocks:
            raise InfeasibleError("recompute", options.recompute, None, "the model has no repeated blocks")
        return (True,)
    return (False, True) if problems.blocks else (False,)
