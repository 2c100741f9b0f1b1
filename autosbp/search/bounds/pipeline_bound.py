"""Lower bound on the step time of a pipeline with unequal stages, without the memory limit.

In a step of T seconds, p stages work and wait for at most p T seconds in all. This covers all work: m microbatches and
what happens once a step. On top come the waits of stages for each other (``bounds.bubble_bound``) and, if a schedule
with v chunks a stage waits for its messages, those of m microbatches over v p - 1 different cuts, forward and backward.

No stage has more than T / m seconds of a microbatch, so no group of stages can have very little of it, wherever the
model is cut.

For models of single ops, a game over cuts (``bounds.cut_game``) raises the bound further, for the schedule with the
least bound first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.errors import InfeasibleError
from autosbp.plan.pipeline import Pipeline
from autosbp.search.bounds.bubble_bound import bubble_s
from autosbp.search.bounds.chunk_lower_bounds import chunk_work_items
from autosbp.search.bounds.chunk_weights import ChunkWorkItems
from autosbp.search.bounds.critical_paths import CriticalPaths
from autosbp.search.bounds.cut_game import CutGame, CutMessages
from autosbp.search.bounds.min_p2p_partition import least_messages_s, work_between
from autosbp.search.bounds.p2p_bound import P2PBound
from autosbp.search.bounds.stage_costs import StageSubproblem
from autosbp.search.problem.builder import BuiltProblem
from autosbp.search.problem.op_clusters import OpCluster
from autosbp.search.stages.cut_points import computed
from autosbp.search.stages.layout_problems import LayoutProblems, PipelineStructure
from autosbp.search.stages.schedule_candidates import ScheduleShape, schedule_shapes

Floats = NDArray[np.float64]
ROUNDING = 1e-9
BISECTIONS = 30
MAX_GAME_STAGES, MAX_GAME_BORDERS, MAX_GAME_PASSES = 4, 4000, 20_000
"""Largest pipelines for the game over cuts: stages, borders, and passes of a step."""
MAX_GAME_TURNS, MAX_GAME_ADDITIONS = 40, 4e9
"""Limits of the game over cuts: turns in a row of one schedule, and additions of all games at one microbatch size."""
MAX_CUT_POINTS, MAX_CHUNKS = 400, 64
"""Most places for cuts, and chunks of a schedule, of the partition bound; above, the smallest messages are assumed."""


@dataclass(frozen=True)
class _Model:
    """Least costs of the model.

    Per sample: ``passes_s`` of all variables together, boxing included; ``largest_s`` of the largest op; ``forward``,
    ``backward`` and ``lean`` (backward without deferrable weight gradients) of each variable. Per step: ``once_s``.
    ``between_s``: least work between any two places for cuts, where the model may be cut before any op."""

    passes_s: float
    largest_s: float
    forward: _PassShares
    backward: _PassShares
    backward_without_wgrad: _PassShares
    once_s: float
    work_between_s: Floats | None


class _PassShares:
    """Shares that passes of one kind have in the variables' least seconds."""

    def __init__(self, own: Floats, seconds: Floats) -> None:
        order = np.argsort(-own / np.maximum(seconds, 1e-30))
        zero = np.zeros(1)
        # Cumulative sums over variables, those with the largest share first.
        self._seconds, self._own = (np.concatenate([zero, np.cumsum(each[order])]) for each in (seconds, own))

    def least(self, size: int, room: Floats) -> tuple[float, Floats]:
        """Least seconds of a microbatch in passes of this kind: of all stages, and of 1, 2, ... of them.

        Args:
            size: samples of the microbatch.
            room: [p - 1] seconds that 1, 2, ... of the other stages have. Variables may be split over stages.
        """
        whole = float(self._own[-1])
        others = np.interp(room[::-1] / size, self._seconds, self._own)
        return size * whole, size * np.maximum(whole - others, 0.0)


class _TimeUpError(Exception):
    """The time is up."""


class PipelineBounds:
    """Lower bounds of a structure per microbatch size, largest first.

    Of the allowed parameter shardings ``storages``, the first one takes the fewest seconds of a step."""

    def __init__(
        self,
        problems: LayoutProblems,
        structure: PipelineStructure,
        sizes: Sequence[int],
        storages: Sequence[str],
        schedules: tuple[str, ...],
    ) -> None:
        self.problems, self.structure, self.sizes = problems, structure, sizes
        self.storages, self.schedules = storages, schedules
        self._p2p = P2PBound(problems, structure, sizes[0])
        self._models: dict[int, _Model | None] = {}
        self._works: dict[int, ChunkWorkItems] = {}

    def raised(
        self, at: int, searched_s: float, worked_s: float, level: float, until: Callable[[], bool] | None = None
    ) -> float:
        """Lower bound on the step time at one microbatch size, with waits and messages, raised up to ``level`` at most.

        Args:
            at: index of the microbatch size.
            searched_s: bound on evenly spread work whose once-a-step part counts only for the share of a step in which
                no stage waits (``SubproblemSolver.working``).
            worked_s: likewise, with all once-a-step work.
            level: seconds above which the bound need not rise.
            until: enables the game over cuts, and returns True when the time is up.
        """
        size, stages, known_s = self.sizes[at], self.structure.stages, max(searched_s, worked_s)
        model = self._model(size) if known_s < level else None
        if model is None:
            return known_s
        count = self.problems.global_batch // size
        waits = self.problems.waits(stages, count)
        once_s = waits / (count + waits) * model.once_s
        work_s = max(stages * searched_s + once_s, stages * worked_s)
        # Each size has its own least work.
        work_s = max(work_s, self.problems.global_batch * model.passes_s + model.once_s)
        # One of the stages runs the largest op.
        known_s = max(known_s, self.problems.global_batch * model.largest_s * (1 - ROUNDING))
        if known_s >= level:
            return known_s
        return max(known_s, self._refined_bound_s(model, size, work_s, level, until))

    def _refined_bound_s(
        self, model: _Model, size: int, work_s: float, level: float, until: Callable[[], bool] | None
    ) -> float:
        """Least step time at a microbatch size, at most ``level``; ``work_s`` is the least work of all stages.

        Assuming a step within ``level`` gives a first bound. The schedule with the least bound is refined first, by
        bisection and, where games give more, by the game over cuts."""
        count = self.problems.global_batch // size
        left = [
            (self._schedule_bound_s(model, size, work_s, level, shape), order, shape)
            for order, shape in enumerate(schedule_shapes(self.structure.stages, count, self.schedules))
        ]
        heapq.heapify(left)
        games: dict[int, CutGame | None] = {}
        closer: set[int] = set()
        additions = 0.0
        while left and left[0][0] < level:
            bound, order, shape = heapq.heappop(left)
            if order not in games:
                games[order] = None if until is None else self._game(shape, size, until)
            game = games[order]
            if (
                game is not None
                and until is not None
                and game.is_open
                and additions < MAX_GAME_ADDITIONS
                and not until()
            ):
                additions += game.raise_bound(level, MAX_GAME_TURNS, until) * game.additions
                if game.bound_s <= bound:  # the game does not improve on the bound without it
                    games[order] = None
                bound = max(bound, float(game.bound_s))
            elif order not in closer:
                closer.add(order)
                bound = max(bound, self._bisected_bound_s(model, size, work_s, level, shape))
            else:
                return bound
            heapq.heappush(left, (bound, order, shape))
        return level

    def _bisected_bound_s(self, model: _Model, size: int, work_s: float, level: float, shape: ScheduleShape) -> float:
        low, high = 0.0, level
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            stays = self._schedule_bound_s(model, size, work_s, middle, shape) >= middle
            low, high = (middle, high) if stays else (low, middle)
        return low

    def _game(self, shape: ScheduleShape, size: int, until: Callable[[], bool]) -> CutGame | None:
        """The game of a schedule; None if it is not applicable, too large, or the time is up."""
        stages, count = self.structure.stages, self.problems.global_batch // size
        defers = shape.schedule.splits_backward
        chunks, borders = stages * shape.virtual, len(self._p2p.places) + 2
        passes = chunks * count * (2 + defers)
        told = self.problems.folding is None and shape.schedule.interleaves
        if not told or stages > MAX_GAME_STAGES or borders > MAX_GAME_BORDERS or passes > MAX_GAME_PASSES:
            return None
        cuts = self._p2p.cuts(shape, count)
        messages = CutMessages(np.stack([cut.forward_s for cut in cuts]), np.stack([cut.backward_s for cut in cuts]))
        paths = CriticalPaths(Pipeline(stages, tuple(map(str, range(1, chunks))), shape.schedule), count)
        work = self._work(size, until)
        return None if work is None else CutGame(paths, work, messages, defers=defers)

    def _work(self, size: int, until: Callable[[], bool]) -> ChunkWorkItems | None:
        """The work items at a microbatch size; None if the time is up before they are known."""

        def check() -> None:
            if until():
                raise _TimeUpError

        if size not in self._works:
            nodes = [node.name for node in computed(self.problems.bound(size))]
            count = self.problems.global_batch // size
            with suppress(_TimeUpError):
                built = self._problem(size, self.storages)
                self._works[size] = chunk_work_items(built, nodes, self._p2p.places, count, check)
        return self._works.get(size)

    def _problem(self, size: int, storages: Sequence[str]) -> BuiltProblem:
        return self.problems.stage_problem(self.structure, size, storages, again=False)

    def _schedule_bound_s(self, model: _Model, size: int, work_s: float, level: float, shape: ScheduleShape) -> float:
        """Least step time under a schedule, given that it is at most ``level``."""
        stages = self.structure.stages
        count = self.problems.global_batch // size
        if stages * shape.virtual > self._p2p.most_chunks:
            return np.inf
        room = level / count * np.arange(1.0, stages)  # seconds of one microbatch, in 1, 2, ... stages
        forward, backward, lean = (
            each.least(size, room) for each in (model.forward, model.backward, model.backward_without_wgrad)
        )
        passes_s = model.passes_s * self.problems.global_batch
        back = lean if shape.schedule.splits_backward else backward
        paths = shape.schedule.waits(stages, shape.virtual)
        spent = max(bubble_s(waits, work_s, passes_s, count, forward, back) for waits in paths)
        sent = max(spent + self._p2p.total_wait_s(shape, count), stages * self._p2p.busiest_stage_s(shape))
        if sent < stages * level and model.work_between_s is not None and stages * shape.virtual <= MAX_CHUNKS:
            # The smallest messages may be at cuts that leave a stage too much work.
            between_s, cuts = self.problems.global_batch * model.work_between_s, self._p2p.cuts(shape, count)
            in_turn = count if shape.schedule.overlaps_sends else 0
            sent = max(sent, spent + least_messages_s(between_s, cuts, level, in_turn))
        return float(sent * (1 - ROUNDING)) / stages

    def _model(self, size: int) -> _Model | None:
        """Least costs at a microbatch size; None if it does not split evenly."""
        if size not in self._models:
            self._models[size] = None
            with suppress(InfeasibleError):
                self._models[size] = self._model_of(size)
        return self._models[size]

    def _model_of(self, size: int) -> _Model:
        problems = self.problems
        built = self._problem(size, self.storages[:1])
        assert built.detail is not None
        copies, parts = problems.cluster_multiplicities(built.clusters), built.detail.parts[: len(built.clusters)]
        zero = np.zeros(1)
        stored = [part.stored[0] if part.stored else None for part in parts]
        passes = [
            float((part.seconds - (zero if own is None else own.seconds)).min())
            for part, own in zip(parts, stored, strict=True)
        ]
        once = [0.0 if own is None else float((own.seconds - own.often).min()) for own in stored]
        seconds = np.maximum(np.array(passes), 0.0) / problems.global_batch
        columns = np.array(
            [(part.forward_s, part.backward_s, part.backward_s - part.deferred_wgrad_s) for part in parts]
        ).T
        forward, backward, lean = (np.repeat(np.minimum(each / size, seconds), copies) for each in columns)
        seconds = np.repeat(seconds, copies)
        passes_s = float(seconds.sum())
        if self.problems.folding is None:
            whole = StageSubproblem(built, range(built.problem.num_variables), self.problems.global_batch // size)
            passes_s = passes_s if whole.is_huge else max(passes_s, whole.least_microbatch_s / size)
        of_forward, of_backward, of_lean = (_PassShares(each, seconds) for each in (forward, backward, lean))
        between_s = self._between_s(built.clusters, seconds) if problems.folding is None else None
        ops = (op for part in parts for op in part.ops)
        largest_s = max((op.forward_s + op.backward_s for op in ops), default=0.0) / size
        return _Model(passes_s, largest_s, of_forward, of_backward, of_lean, float(np.dot(once, copies)), between_s)

    def _between_s(self, clusters: Sequence[OpCluster], seconds: Floats) -> Floats | None:
        nodes = computed(self.problems.bound(self.sizes[0]))
        if len(self._p2p.places) > MAX_CUT_POINTS:
            return None
        at = {node.name: place for place, node in enumerate(nodes)}
        inside = [[at[node.name] for node in cluster.nodes if node.name in at] for cluster in clusters]
        known = [place for place, each in enumerate(inside) if each]
        first, last = ([kind(inside[place]) for place in known] for kind in (min, max))
        return work_between(first, last, seconds[known], self._p2p.places, len(nodes))
