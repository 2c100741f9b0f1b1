"""What a collective costs on top between ops, from rounds that differ more than what is looked for."""

from __future__ import annotations

from statistics import fmean, median

import numpy as np
import pytest

from autosbp.calibration._arrival_delay import pooled_delay_s

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
ROUNDS = 5


def rounds(true_s: dict[str, float], noise_s: float, seed: int) -> dict[str, list[float]]:
    generator = np.random.default_rng(seed)
    return {kind: (seconds + noise_s * generator.standard_normal(ROUNDS)).tolist() for kind, seconds in true_s.items()}


def errors(true_s: dict[str, float], noise_s: float) -> tuple[float, float]:
    """Of many measurements, the mean error of each kind, and that of its own median."""
    found, own = [], []
    for seed in range(200):
        made = rounds(true_s, noise_s, seed)
        found += [abs(seconds - true_s[kind]) for kind, seconds in pooled_delay_s(made).items()]
        own += [abs(max(median(made[kind]), 0.0) - seconds) for kind, seconds in true_s.items()]
    return fmean(found), fmean(own)


@pytest.mark.parametrize("noise_s", [3e-4, 1e-3])
def test_kinds_with_equal_delays_are_pooled(noise_s: float) -> None:
    pooled, apart = errors(dict.fromkeys(KINDS, 1e-3), noise_s)
    assert pooled < 0.7 * apart


def test_a_kind_with_a_longer_delay_is_not_pooled() -> None:
    true_s = {**dict.fromkeys(KINDS, 1e-3), "all_to_all": 4e-3}
    pooled, apart = errors(true_s, 2e-4)
    assert pooled < 1.1 * apart
    assert pooled_delay_s(rounds(true_s, 2e-4, 0))["all_to_all"] == pytest.approx(4e-3, rel=0.1)


def test_messages_that_leave_ranks_idle_are_not_pooled() -> None:
    made = {**rounds(dict.fromkeys(KINDS, 1e-3), 1e-4, 0), "p2p": [5e-3] * ROUNDS}
    assert pooled_delay_s(made)["p2p"] == 5e-3
    assert pooled_delay_s({**made, "p2p": [-5e-3] * ROUNDS}) == {**pooled_delay_s(made), "p2p": 0.0}


def test_one_kind_or_one_round_has_its_median() -> None:
    assert pooled_delay_s({"all_reduce": [1e-3, 3e-3, 2e-3]}) == {"all_reduce": 2e-3}
    assert pooled_delay_s({"all_reduce": [1e-3], "all_gather": [-1e-3]}) == {"all_reduce": 1e-3, "all_gather": 0.0}
