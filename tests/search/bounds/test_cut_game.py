"""The least step of all ways to cut a model: against every way to cut it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from autosbp.costmodel.pipeline_timing import ChunkTimes, pipeline_time
from autosbp.native import LOOPS
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.schedules import INTERLEAVED, ZERO_BUBBLE, Schedule
from autosbp.search.bounds import chunk_weights
from autosbp.search.bounds.chunk_weights import (
    BACKWARD,
    DEFERRED_WGRAD,
    FORWARD,
    GATHERED_PARAMETERS,
    ONCE_PER_STEP,
    STEP,
    ChunkPassWeights,
    ChunkWorkItems,
)
from autosbp.search.bounds.critical_paths import CriticalPaths
from autosbp.search.bounds.cut_game import CutGame, CutMessages


def never() -> bool:
    return False


def single_ops(dice: np.random.Generator, ops: int, count: int) -> ChunkWorkItems:
    """Ops of unequal seconds, with a border between any two."""
    forward, backward, once = dice.random(ops) ** 3 + 0.01, dice.random(ops) ** 3 + 0.02, dice.random(ops) * (ops / 50)
    put_off = backward / 3 * (dice.random(ops) < 0.7)
    passes = forward + backward
    columns = np.stack([count * passes + once, passes, forward, backward, put_off, once, 0 * once])
    return ChunkWorkItems(np.arange(ops), np.arange(1, ops + 1), columns, ops + 1, count)


def step_s(work: ChunkWorkItems, cuts: tuple[int, ...], sent: CutMessages, stages: int, schedule: Schedule) -> float:
    """As the cost model has it; of zero bubble, with the lag that is quickest."""
    each = work.of_chunks(cuts)
    late = each[:, DEFERRED_WGRAD] if schedule.splits_backward else np.zeros(len(each))
    ahead = [*(sent.ahead_s[at, cut - 1] for at, cut in enumerate(cuts)), 0.0]
    back = [0.0, *(sent.back_s[at, cut - 1] for at, cut in enumerate(cuts))]
    chunks = [
        ChunkTimes(*map(float, own))
        for own in zip(each[:, FORWARD], each[:, BACKWARD] - late, late, ahead, back, strict=True)
    ]
    once = each[:, ONCE_PER_STEP].reshape(-1, stages).sum(axis=0)
    lags = range(stages) if schedule.splits_backward else (None,)
    found = [pipeline_time(chunks, stages, work.count, 0.0, schedule, lag).ends for lag in lags]
    return min(float((np.array(ends) + once).max()) for ends in found)


@pytest.mark.parametrize("schedule", [INTERLEAVED, ZERO_BUBBLE])
@pytest.mark.parametrize(
    ("stages", "virtual", "count", "ops"), [(2, 2, 2, 11), (2, 3, 4, 10), (3, 2, 6, 10), (4, 2, 4, 10)]
)
def test_no_way_to_cut_is_below_the_bound_and_one_is_near(
    schedule: Schedule, stages: int, virtual: int, count: int, ops: int
) -> None:
    dice = np.random.default_rng(stages * virtual + ops)
    for _ in range(4):
        chunks = stages * virtual
        work = single_ops(dice, ops, count)
        sent = CutMessages(*(dice.random((2, chunks - 1, ops - 1)) * 0.05))
        ways = combinations(range(1, ops), chunks - 1)
        least = min(step_s(work, cuts, sent, stages, schedule) for cuts in ways)
        pipeline = Pipeline(stages, tuple(map(str, range(1, chunks))), schedule)
        paths, defers = CriticalPaths(pipeline, count), schedule.splits_backward
        game = CutGame(paths, work, sent, defers=defers)
        assert game.bound_s == 0.0
        # Paths of zero bubble are of all lags: they may stay below the quickest.
        level = least * ((0.9 if defers else 1.0) - 1e-7)
        turns = game.raise_bound(level, 4000, never)
        assert level <= game.bound_s <= least * (1 + 1e-9)
        assert turns < 4000 and game.raise_bound(level, 4000, never) == 0, "what is proved is not looked at again"
        # Where a way to cut is quicker than what is asked for, that is what is proved.
        above = CutGame(paths, work, sent, defers=defers)
        assert above.raise_bound(3 * least, 4000, never) < 4000 and not above.is_open
        assert (0.9 if defers else 1 - 1e-6) * least <= above.bound_s <= least * (1 + 1e-9)


@pytest.mark.parametrize("schedule", [INTERLEAVED, ZERO_BUBBLE])
@pytest.mark.parametrize(("stages", "virtual", "count", "ops"), [(2, 2, 2, 9), (2, 3, 2, 9), (3, 2, 3, 9)])
def test_parameters_may_be_gathered_once_or_in_each_use(
    schedule: Schedule, stages: int, virtual: int, count: int, ops: int
) -> None:
    """Each op has parameters that cost more once a step, or else forward and backward of each microbatch."""
    dice = np.random.default_rng(ops + virtual)
    for _ in range(6):
        chunks, plain = stages * virtual, single_ops(dice, ops, count)
        ahead, back = dice.random((2, ops)) ** 2 * (dice.random((2, ops)) < 0.4)
        columns = plain.columns.copy()
        columns[GATHERED_PARAMETERS] = ahead + back
        columns[STEP] += columns[GATHERED_PARAMETERS]
        work = ChunkWorkItems(plain.begins, plain.ends, columns, ops + 1, count)
        sent = CutMessages(*np.zeros((2, chunks - 1, ops - 1)))
        least = np.inf
        for in_each_use in (np.zeros(ops), np.ones(ops), dice.random(ops) < 0.5):
            real = plain.columns.copy()
            real[FORWARD] += in_each_use * ahead
            real[BACKWARD] += in_each_use * back
            real[ONCE_PER_STEP] += (1 - in_each_use) * (ahead + back)
            ways = combinations(range(1, ops), chunks - 1)
            stored = ChunkWorkItems(plain.begins, plain.ends, real, ops + 1, count)
            least = min(least, *(step_s(stored, cuts, sent, stages, schedule) for cuts in ways))
        pipeline = Pipeline(stages, tuple(map(str, range(1, chunks))), schedule)
        game = CutGame(CriticalPaths(pipeline, count), work, sent, defers=schedule.splits_backward)
        game.raise_bound(2 * least, 4000, never)
        assert 0.5 * least < game.bound_s <= least * (1 + 1e-9)


def test_a_bound_remains_after_the_time_limit() -> None:
    dice = np.random.default_rng(1)
    work, sent = single_ops(dice, 30, 4), CutMessages(np.zeros((3, 29)), np.zeros((3, 29)))
    paths = CriticalPaths(Pipeline(2, ("1", "2", "3"), INTERLEAVED), 4)
    assert CutGame(paths, work, sent, defers=False).raise_bound(100.0, 100, lambda: True) == 0
    some = CutGame(paths, work, sent, defers=False)
    some.raise_bound(100.0, 1, never)
    more = CutGame(paths, work, sent, defers=False)
    more.raise_bound(100.0, 400, never)
    assert 0.0 <= some.bound_s <= more.bound_s < 100.0


def test_more_chunks_than_ops_cannot_be_cut() -> None:
    work, sent = single_ops(np.random.default_rng(2), 3, 4), CutMessages(np.zeros((3, 2)), np.zeros((3, 2)))
    game = CutGame(CriticalPaths(Pipeline(2, ("1", "2", "3"), INTERLEAVED), 4), work, sent, defers=False)
    assert game.raise_bound(5.0, 10, never) == 0 and game.bound_s == np.inf


@pytest.mark.parametrize("seed", range(3))
def test_cuts_that_take_least(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Works that reach over several borders, some of which take away; with the compiled loop and without, bit for bit."""
    dice = np.random.default_rng(seed)
    for _ in range(20):
        borders, chunks = int(dice.integers(5, 11)), int(dice.integers(1, 5))
        number = int(dice.integers(1, 25))
        ends = np.sort(dice.integers(1, borders, number))
        begins = np.array([dice.integers(0, end) for end in ends])
        columns = dice.random((7, number)) * np.array([1, 1, 1, 1, 0.1, 1, 1])[:, None]
        work = ChunkWorkItems(begins, ends, columns, borders, 3)
        weights = ChunkPassWeights(*dice.random((4, chunks)))
        prices = dice.random((chunks - 1, borders - 2))
        lowest = np.arange(1, chunks)
        highest = borders - 1 - chunks + np.arange(1, chunks)
        found = work.least(weights, prices, lowest, highest)
        ways = list(combinations(range(1, borders - 1), chunks - 1))
        seconds = [
            float((work.of_chunks(cuts) * work.weighted(weights)).sum())
            + sum(prices[at, cut - 1] for at, cut in enumerate(cuts))
            for cuts in ways
        ]
        assert found[0] == pytest.approx(min(seconds)) and tuple(found[1]) == ways[int(np.argmin(seconds))]
        monkeypatch.setattr(chunk_weights, "LOOPS", None)
        assert work.least(weights, prices, lowest, highest) == found
        monkeypatch.setattr(chunk_weights, "LOOPS", LOOPS)
        cuts = work.even(chunks)
        assert cuts == sorted(set(cuts)) and all(1 <= cut <= borders - 2 for cut in cuts)
