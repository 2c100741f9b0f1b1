"""Sampling stays in its time box, batches short calls, and takes the slowest rank."""

from __future__ import annotations

import pytest

from autosbp.calibration._arrival_skew import LATE_S, ArrivalSkew
from autosbp.calibration._sampling import MIN_CALLS, MIN_REPEATS, sample, slowest_rank_times, summary
from autosbp.costmodel.calibration import Spread


class Clock:
    """A clock that only the sampled call moves."""

    def __init__(self, call_s: float) -> None:
        self.call_s, self.now, self.calls = call_s, 0.0, 0

    def run(self) -> None:
        self.now += self.call_s
        self.calls += 1

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def sample(
        self, box_s: float, batch_s: float = 0.0, repeats: int = 10, arrival: ArrivalSkew | None = None
    ) -> list[float]:
        return sample(
            self.run, barrier_max=lambda v: v, repeats=repeats, box_s=box_s, batch_s=batch_s, clock=lambda: self.now,
            arrival=arrival,
        )  # fmt: skip


def test_all_repeats_are_made_where_they_fit() -> None:
    clock = Clock(1e-3)
    assert clock.sample(box_s=1.0) == pytest.approx([1e-3] * 10)
    assert clock.calls == 11  # one to warm up


def test_slow_calls_are_repeated_at_least_three_times() -> None:
    clock = Clock(2.0)
    assert len(clock.sample(box_s=0.5)) == MIN_REPEATS
    assert clock.calls == MIN_CALLS


def test_as_many_repeats_are_made_as_the_time_allows() -> None:
    assert len(Clock(0.1).sample(box_s=0.55)) == 5


def test_short_calls_are_averaged_over_a_batch() -> None:
    clock = Clock(1e-4)
    assert clock.sample(box_s=1.0, batch_s=2e-3) == pytest.approx([1e-4] * 10)
    assert clock.calls in (2 + 10 * 20, 2 + 10 * 21)


def test_slowest_rank_of_each_group_and_repeat() -> None:
    by_rank = [[1.0, 5.0], [2.0, 2.0], [3.0, 1.0], [1.0, 4.0]]
    assert slowest_rank_times(by_rank, [[0, 2], [1, 3]]) == [3.0, 5.0, 2.0, 4.0]


def test_summary_is_median_interquartile_range_and_spread() -> None:
    point = summary(1024, [4.0, 1.0, 100.0, 3.0, 2.0], 5)
    assert (point.num_bytes, point.median_s, point.iqr_s, point.num_repeats) == (1024, 3.0, 2.0, 5)
    assert point.spread == Spread(1.0, (1.0, pytest.approx(1.4), 2.0, 3.0, 4.0, pytest.approx(61.6), 100.0))


def test_summary_shows_two_usual_times_where_a_median_does_not() -> None:
    point = summary(1024, [1.0] * 14 + [2.0] * 16, 30)
    assert point.median_s == 2.0 and point.spread is not None
    assert point.spread.quantiles_s == (1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0)


def test_calls_may_be_timed_by_another_clock_than_the_hosts() -> None:
    asked: list[int] = []

    def seconds_of(call: object, count: int) -> float:
        asked.append(count)
        return 1e-3 * count

    found = sample(
        lambda: None,
        barrier_max=lambda v: v,
        repeats=4,
        box_s=1.0,
        batch_s=5e-3,
        clock=lambda: 0.0,
        seconds_of=seconds_of,
    )
    assert found == pytest.approx([1e-3] * 4) and asked == [1, 1, 5, 5, 5, 5]


@pytest.mark.parametrize("batch_s", [0.0, 0.05])
def test_ranks_come_last_in_turns_and_time_counts_from_then_on(batch_s: float) -> None:
    by_rank = []
    for position in (0, 1):
        clock = Clock(1e-3)
        late = ArrivalSkew(position, 2, LATE_S, clock.wait)
        by_rank.append(clock.sample(box_s=1.0, batch_s=batch_s, arrival=late))
    own = [[seconds > 0 for seconds in times] for times in by_rank]
    assert own[0] == [not last for last in own[1]] and any(own[0]) and any(own[1])
    assert slowest_rank_times(by_rank, [[0, 1]]) == pytest.approx([1e-3] * 10)


def test_waiting_for_the_last_rank_counts_toward_the_budget() -> None:
    clock = Clock(1e-3)
    assert len(clock.sample(box_s=8 * (LATE_S + 1e-3), repeats=30, arrival=ArrivalSkew(0, 1, LATE_S, clock.wait))) == 8


@pytest.mark.parametrize(("kind", "backend"), [("all_to_all", "nccl"), ("p2p", "gloo")])
def test_ranks_without_staggered_arrival_start_together(kind: str, backend: str) -> None:
    assert ArrivalSkew.of(kind, backend, 0, 2) == ArrivalSkew()
    assert ArrivalSkew.of("all_to_all", "gloo", 0, 2).late_s == LATE_S
