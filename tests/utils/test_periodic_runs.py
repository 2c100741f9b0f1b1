"""Periodic runs against their definition, element by element."""

from __future__ import annotations

import random

from autosbp.utils.periodic_runs import PeriodicRun, heaviest_run, key_ids, likely_periods, periodic_runs


def sequence(rng: random.Random) -> list[str]:
    """Blocks that repeat, some with others between them."""
    found: list[str] = []
    for _ in range(rng.randint(1, 4)):
        block = [rng.choice("abc") for _ in range(rng.randint(1, 5))]
        found += block * rng.randint(1, 6) + [rng.choice("abcd") for _ in range(rng.randint(0, 3))]
    return found


def repeats(keys: list[str], start: int, stop: int, period: int) -> bool:
    return all(keys[at] == keys[at + period] for at in range(start, stop - period))


def test_runs_are_all_that_repeat_and_cannot_be_longer() -> None:
    for seed in range(200):
        keys = sequence(random.Random(seed))
        for period in range(1, len(keys)):
            found = periodic_runs(key_ids(keys), period, 3)
            spans = [
                PeriodicRun(start, stop, period)
                for start in range(len(keys))
                for stop in range(start + 3 * period, len(keys) + 1)
                if repeats(keys, start, stop, period)
                and not (start and repeats(keys, start - 1, stop, period))
                and not (stop < len(keys) and repeats(keys, start, stop + 1, period))
            ]
            assert found == spans and all(run.copies >= 3 for run in found)


def test_the_heaviest_run_is_the_first_of_those_that_weigh_most() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        keys = sequence(rng)
        weights = [rng.choice([0, 0, 1, 2]) for _ in keys]
        best: tuple[float, PeriodicRun] = 0, PeriodicRun(0, 0, 1)
        for period in range(1, len(keys) // 2 + 1):
            for start in range(len(keys) - 2 * period + 1):
                stop = max(at for at in range(start, len(keys) + 1, period) if repeats(keys, start, at, period))
                if (
                    sum(weights[start:stop]) > best[0]
                    and any(weights[start : start + period])
                    and stop > start + period
                ):
                    best = sum(weights[start:stop]), PeriodicRun(start, stop, period)
        assert heaviest_run(key_ids(keys), weights) == best


def test_periods_are_the_commonest_distances_between_like_elements() -> None:
    assert likely_periods(key_ids("abcabcabcaa"), 2) == [3, 1]
