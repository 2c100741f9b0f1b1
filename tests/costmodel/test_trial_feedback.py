"""Few and noisy lessons: on average they make predictions of other strategies better, and almost never notably worse.

Simulated clusters: strategies whose ops, collectives and waits grow together or apart, factors near 1, near a common
other, or far, noise of 5 or 15 %, and at times trials on a loaded machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from autosbp.costmodel.calibration import Calibration, CollectiveFit, Correction, Point
from autosbp.costmodel.calibration_correction import TrialResidual, fit_correction
from tests.costmodel.test_calibration_correction import CLUSTER

LATENCY_S = 2e-3
CALIBRATION = Calibration(
    CLUSTER,
    "gloo",
    "relative",
    (CollectiveFit("all_reduce", (2, 2), 1e-4, 1e-9, 1.0, 0.0, 0.0, (Point(1024, LATENCY_S, 0.0, 30),)),),
)
NUM_STRATEGIES, HELD_OUT, REPEATS = 24, 12, 8
NOTABLY = 0.05
PLAIN = Correction(1.0, 1.0, 0.0, 0)


@dataclass(frozen=True)
class World:
    """A simulated cluster: the right prediction of every strategy, and one trial of each."""

    right: list[TrialResidual]
    tried: list[TrialResidual]

    def error(self, correction: Correction) -> float:
        """Mean relative error over strategies that taught nothing."""
        held = self.right[-HELD_OUT:]
        return float(np.mean([abs(one.predicted_s(correction) / one.measured_s - 1) for one in held]))


def truth(kind: str, rng: np.random.Generator) -> Correction:
    """The factors of one cluster."""
    spread, common = {"near": (0.08, 0.0), "common": (0.07, 0.2), "far": (0.25, 0.0)}[kind]
    compute, network = np.exp(rng.normal(0, spread, 2) + rng.normal(0, common))
    return Correction(float(compute), float(network), float(abs(rng.normal(0, LATENCY_S / 20))), 0)


def world(kind: str, correlation: float, noise: float, odd: float, rng: np.random.Generator) -> World:
    """Steps of about 0.1 s, collectives of 5 to 500 ms; ``odd`` is the share of trials on a loaded machine."""
    factors = truth(kind, rng)
    one, other = rng.normal(0, 0.5, (2, NUM_STRATEGIES))
    size = correlation * one + np.sqrt(1 - correlation**2) * other
    compute_s, comm_s = 0.05 * np.exp(0.6 * one), 0.05 * np.exp(1.6 * size)
    waits = np.maximum(1, 20 * np.exp(0.8 * size + 0.3 * rng.normal(size=NUM_STRATEGIES)))
    right, tried = [], []
    for at in range(NUM_STRATEGIES):
        plain = TrialResidual(float(compute_s[at]), float(comm_s[at]), 0.003, int(waits[at]), 1.0)
        seconds = plain.predicted_s(factors)
        load = rng.uniform(1.3, 2.5) if rng.random() < odd else 1.0
        right.append(replace(plain, measured_s=seconds))
        tried.append(replace(plain, measured_s=float(seconds * load * np.exp(rng.normal(0, noise)))))
    return World(right, tried)


def worlds(kind: str) -> Iterator[World]:
    rng = np.random.default_rng(0)
    for correlation, noise, odd, _ in product((0.0, 0.8), (0.05, 0.15), (0.0, 0.1), range(REPEATS)):
        yield world(kind, correlation, noise, odd, rng)


@pytest.mark.parametrize("lessons", [1, 2, 4])
@pytest.mark.parametrize(("kind", "gain"), [("near", 0.02), ("common", 0.08), ("far", 0.07)])
def test_few_noisy_lessons_help_on_average_and_almost_never_harm(kind: str, gain: float, lessons: int) -> None:
    errors = np.array([
        (each.error(PLAIN), each.error(fit_correction(CALIBRATION, each.tried[:lessons]).correction)) for each in worlds(kind)
    ])  # fmt: skip
    before, after = errors.mean(axis=0)
    assert after < (1 - gain) * before
    assert np.mean(errors[:, 1] > errors[:, 0] + NOTABLY) <= 0.03
    assert np.max(errors[:, 1] - errors[:, 0]) < 0.1


def test_predictions_improve_with_use() -> None:
    errors = np.array([
        [each.error(fit_correction(CALIBRATION, each.tried[:lessons]).correction) for lessons in (1, 4, 12)]
        for kind in ("near", "common", "far")
        for each in worlds(kind)
    ]).mean(axis=0)  # fmt: skip
    assert errors[0] > errors[1] > errors[2]


def test_one_odd_trial_among_four_moves_little() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        tried = world("near", 0.8, 0.05, 0.0, rng).tried[:4]
        odd = [*tried[:3], replace(tried[3], measured_s=3.0 * tried[3].measured_s)]
        plain, moved = (fit_correction(CALIBRATION, lessons).correction for lessons in (tried, odd))
        assert moved.compute / plain.compute == pytest.approx(1.0, abs=0.1)
        assert moved.network / plain.network == pytest.approx(1.0, abs=0.1)


def test_trials_of_one_mixture_do_not_tear_the_factors_apart() -> None:
    """Four alike lessons say nothing of which part is slow."""
    alike = [TrialResidual(0.05, 0.05 * (1 + 0.05 * at), 0.002, 10, 0.14 * (1 + 0.1 * (-1) ** at)) for at in range(4)]
    found = fit_correction(CALIBRATION, alike).correction
    assert found.compute / found.network == pytest.approx(1.0, abs=0.1)
    assert 1.05 < found.compute < 1.5
