"""A bound on the steps of a pipeline whose stages need not be alike, without the memory limit.

The p stages of a step of T seconds work and wait p T seconds at the most. All work is in there, m microbatches and what
happens once. On top come what stages wait for each other (``bounds.bubble``), and, for a schedule with v chunks a stage,
messages of m microbatches over v p - 1 different cuts, forward and back, where stages wait for them.

No stage has more of a microbatch than T / m seconds, so that some stages cannot have little of it, however the model is cut.

What these leave open of a model of single ops is looked at cut by cut (``bounds.cut_game``), the schedule with the least bound
first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.errors import InfeasibleError
from autosbp.pipeline import Pipeline
from autosbp.search.bounds.bubble import bubble_s
from autosbp.search.bounds.chunk_work import ChunkWork
from autosbp.search.bounds.critical_paths import CriticalPaths
from autosbp.search.bounds.cut_game import CutGame, Messages
from autosbp.search.bounds.dealing import least_messages_s, work_between
from autosbp.search.bounds.least_work import chunk_work
from autosbp.search.bounds.sends import Sends
from autosbp.search.bounds.stage_costs import Part
from autosbp.search.problem.build import BuiltProblem
from autosbp.search.problem.clusters import OpCluster
from autosbp.search.stages.crossings import computed
from autosbp.search.stages.layouts import LayoutProblems, Structure
from autosbp.search.stages.pipelines import Shape, shapes

Floats = NDArray[np.float64]
ROUNDING = 1e-9
BISECTIONS = 30
MOST_STAGES, MOST_BORDERS, MOST_PASSES = 4, 4000, 20_000
"""Of pipelines that are looked at cut by cut: stages, places, and passes of a step."""
TURNS, MOST_ADDITIONS = 40, 4e9
"""Of one schedule's game before another one's bound may be the least; and of all games of a structure and a size."""
MOST_PLACES, MOST_CHUNKS = 400, 64
"""For cuts, and of a schedule: where there are more, the smallest messages are taken."""


@dataclass(frozen=True)
class _Model:
    """Of one sample: the least ``passes_s`` of all variables together, boxing included, and of the largest op; and what
    each variable takes at the least forward, backward, and backward without what may be put off. Of a step: what happens
    once. ``between_s`` is the least work between any two places for cuts, where any op may be one."""

    passes_s: float
    largest_s: float
    forward: _Share
    backward: _Share
    lean: _Share
    once_s: float
    between_s: Floats | None


class _Share:
    """What variables take of their least seconds in passes of one kind."""

    def __init__(self, own: Floats, seconds: Floats) -> None:
        order = np.argsort(-own / np.maximum(seconds, 1e-30))
        zero = np.zeros(1)
        # Of variables that have most of it to their seconds, ever more of them.
        self._seconds, self._own = (np.concatenate([zero, np.cumsum(each[order])]) for each in (seconds, own))

    def least(self, size: int, room: Floats) -> tuple[float, Floats]:
        """Of a microbatch of a size: of all variables, and of those of 1, 2, ... of the stages, where as many others have
        room for so many seconds, of a part of a variable, too."""
        whole = float(self._own[-1])
        others = np.interp(room[::-1] / size, self._seconds, self._own)
        return size * whole, size * np.maximum(whole - others, 0.0)


class _OverError(Exception):
    """Time is over."""


class WaitBounds:
    """Bounds of a structure by the sizes of its microbatches, largest first. No way to store parameters takes fewer seconds
    of a step than the first of ``storages``, which are all that a strategy may have."""

    def __init__(
        self,
        problems: LayoutProblems,
        structure: Structure,
        sizes: Sequence[int],
        storages: Sequence[str],
        schedules: tuple[str, ...],
    ) -> None:
        self.problems, self.structure, self.sizes = problems, structure, sizes
        self.storages, self.schedules = storages, schedules
        self._sends = Sends(problems, structure, sizes[0])
        self._models: dict[int, _Model | None] = {}
        self._works: dict[int, ChunkWork] = {}

    def raised(
        self, at: int, searched_s: float, worked_s: float, level: float, until: Callable[[], bool] | None = None
    ) -> float:
        """A bound of work that is dealt out evenly, of microbatches of one size, with waits and messages, up to a level.

        Args:
            searched_s: a bound that has of what happens once the part of a step that no stage waits (``SpaceSolver._working``).
            worked_s: one that has all of it.
            until: looks at pipelines cut by cut, until it says that time is over.
        """
        size, stages, known_s = self.sizes[at], self.structure.stages, max(searched_s, worked_s)
        model = self._model(size) if known_s < level else None
        if model is None:
            return known_s
        count = self.problems.global_batch // size
        waits = self.problems.waits(stages, count)
        once_s = waits / (count + waits) * model.once_s
        work_s = max(stages * searched_s + once_s, stages * worked_s)
        # Each size has to do what its own microbatches take.
        work_s = max(work_s, self.problems.global_batch * model.passes_s + model.once_s)
        # One of the stages has the largest op.
        known_s = max(known_s, self.problems.global_batch * model.largest_s * (1 - ROUNDING))
        if known_s >= level:
            return known_s
        return max(known_s, self._least(model, size, work_s, level, until))

    def _least(self, model: _Model, size: int, work_s: float, level: float, until: Callable[[], bool] | None) -> float:
        """The least step of microbatches of a size, not above ``level``; ``work_s`` is what all stages work, at the least.

        What a step takes at the least if it takes no more than the level bounds it. It is looked at more closely, and cut
        by cut where games tell more, of the schedule with the least bound first.
        """
        count = self.problems.global_batch // size
        left = [
            (self._step_s(model, size, work_s, level, shape), order, shape)
            for order, shape in enumerate(shapes(self.structure.stages, count, self.schedules))
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
            if game is not None and until is not None and game.is_open and additions < MOST_ADDITIONS and not until():
                additions += game.raise_bound(level, TURNS, until) * game.additions
                if game.bound_s <= bound:  # no nearer to what is known without it
                    games[order] = None
                bound = max(bound, float(game.bound_s))
            elif order not in closer:
                closer.add(order)
                bound = max(bound, self._bisected(model, size, work_s, level, shape))
            else:
                return bound
            heapq.heappush(left, (bound, order, shape))
        return level

    def _bisected(self, model: _Model, size: int, work_s: float, level: float, shape: Shape) -> float:
        low, high = 0.0, level
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            stays = self._step_s(model, size, work_s, middle, shape) >= middle
            low, high = (middle, high) if stays else (low, middle)
        return low

    def _game(self, shape: Shape, size: int, until: Callable[[], bool]) -> CutGame | None:
        """Of a schedule whose messages do not go beside passes; None, too, where time is over."""
        stages, count = self.structure.stages, self.problems.global_batch // size
        defers = shape.schedule.splits_backward
        chunks, borders = stages * shape.virtual, len(self._sends.places) + 2
        passes = chunks * count * (2 + defers)
        told = self.problems.folding is None and shape.schedule.interleaves
        if not told or stages > MOST_STAGES or borders > MOST_BORDERS or passes > MOST_PASSES:
            return None
        cuts = self._sends.cuts(shape, count)
        messages = Messages(np.stack([cut.ahead_s for cut in cuts]), np.stack([cut.back_s for cut in cuts]))
        paths = CriticalPaths(Pipeline(stages, tuple(map(str, range(1, chunks))), shape.schedule), count)
        work = self._work(size, until)
        return None if work is None else CutGame(paths, work, messages, defers=defers)

    def _work(self, size: int, until: Callable[[], bool]) -> ChunkWork | None:
        """None where time is over before it is known."""

        def check() -> None:
            if until():
                raise _OverError

        if size not in self._works:
            nodes = [node.name for node in computed(self.problems.bound(size))]
            count = self.problems.global_batch // size
            with suppress(_OverError):
                built = self._problem(size, self.storages)
                self._works[size] = chunk_work(built, nodes, self._sends.places, count, check)
        return self._works.get(size)

    def _problem(self, size: int, storages: Sequence[str]) -> BuiltProblem:
        return self.problems.stage_problem(self.structure, size, storages, again=False)

    def _step_s(self, model: _Model, size: int, work_s: float, level: float, shape: Shape) -> float:
        """What a step takes under a schedule, at the least, if it takes no more than ``level``."""
        stages = self.structure.stages
        count = self.problems.global_batch // size
        if stages * shape.virtual > self._sends.most_chunks:
            return np.inf
        room = level / count * np.arange(1.0, stages)  # of one microbatch, in so many stages
        forward, backward, lean = (each.least(size, room) for each in (model.forward, model.backward, model.lean))
        passes_s = model.passes_s * self.problems.global_batch
        back = lean if shape.schedule.splits_backward else backward
        paths = shape.schedule.waits(stages, shape.virtual)
        spent = max(bubble_s(waits, work_s, passes_s, count, forward, back) for waits in paths)
        sent = max(spent + self._sends.least_s(shape, count), stages * self._sends.busiest_s(shape))
        if sent < stages * level and model.between_s is not None and stages * shape.virtual <= MOST_CHUNKS:
            # The smallest messages may be where no stage could make use of them.
            between_s, cuts = self.problems.global_batch * model.between_s, self._sends.cuts(shape, count)
            in_turn = count if shape.schedule.overlaps_sends else 0
            sent = max(sent, spent + least_messages_s(between_s, cuts, level, in_turn))
        return float(sent * (1 - ROUNDING)) / stages

    def _model(self, size: int) -> _Model | None:
        """None where a microbatch does not split evenly."""
        if size not in self._models:
            self._models[size] = None
            with suppress(InfeasibleError):
                self._models[size] = self._model_of(size)
        return self._models[size]

    def _model_of(self, size: int) -> _Model:
        problems = self.problems
        built = self._problem(size, self.storages[:1])
        assert built.detail is not None
        copies, parts = problems.copies(built.clusters), built.detail.parts[: len(built.clusters)]
        zero = np.zeros(1)
        stored = [part.stored[0] if part.stored else None for part in parts]
        passes = [
            float((part.seconds - (zero if own is None else own.seconds)).min())
            for part, own in zip(parts, stored, strict=True)
        ]
        once = [0.0 if own is None else float((own.seconds - own.often).min()) for own in stored]
        seconds = np.maximum(np.array(passes), 0.0) / problems.global_batch
        columns = np.array([(part.forward_s, part.backward_s, part.backward_s - part.put_off_s) for part in parts]).T
        forward, backward, lean = (np.repeat(np.minimum(each / size, seconds), copies) for each in columns)
        seconds = np.repeat(seconds, copies)
        passes_s = float(seconds.sum())
        if self.problems.folding is None:
            whole = Part(built, range(built.problem.num_variables), self.problems.global_batch // size)
            passes_s = passes_s if whole.is_huge else max(passes_s, whole.shortest_s / size)
        of_forward, of_backward, of_lean = (_Share(each, seconds) for each in (forward, backward, lean))
        between_s = self._between_s(built.clusters, seconds) if problems.folding is None else None
        ops = (op for part in parts for op in part.ops)
        largest_s = max((op.forward_s + op.backward_s for op in ops), default=0.0) / size
        return _Model(passes_s, largest_s, of_forward, of_backward, of_lean, float(np.dot(once, copies)), between_s)

    def _between_s(self, clusters: Sequence[OpCluster], seconds: Floats) -> Floats | None:
        nodes = computed(self.problems.bound(self.sizes[0]))
        if len(self._sends.places) > MOST_PLACES:
            return None
        at = {node.name: place for place, node in enumerate(nodes)}
        inside = [[at[node.name] for node in cluster.nodes if node.name in at] for cluster in clusters]
        known = [place for place, each in enumerate(inside) if each]
        first, last = ([kind(inside[place]) for place in known] for kind in (min, max))
        return work_between(first, last, seconds[known], self._sends.places, len(nodes))
