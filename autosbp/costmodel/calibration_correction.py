"""Correction factors for a cluster's predictions, fitted to trials.

A calibration measures collectives and ops in isolation. In a step they interact: they share caches, ranks arrive late,
kernels slow each other down. A few trials show by how much. The correction is three numbers per cluster, bounded and
kept near the calibration by a prior, so that one odd trial cannot spoil it. Every correction creates a new version of
the calibration and can be undone.

Trials are noisy, and ops and collectives of one model scale together, so a few trials cannot separate their factors:
the prior keeps their common factor and their ratio near 1. Trials and prior both have a soft-L1 loss: one odd trial is
outvoted, little evidence moves little, and strong evidence moves the factors fully.
``tests/costmodel/test_trial_feedback.py`` tests the constants below for these properties. The ratio has the loosest
prior that passes: in ``benchmarks.prediction`` ops are 5 to 30 % slower in steps than alone where collectives are
right, which a tighter prior did not learn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.calibration import Calibration, Correction
from autosbp.errors import InputError
from autosbp.utils.json_io import Fields

NOISE_SCALE = 0.1
"""Scale of log(predicted / measured step time) of one trial under a right prediction."""
COMMON_FACTOR_SCALE = 0.05
"""Prior scale of the logarithm of the factor common to ops and collectives."""
FACTOR_RATIO_SCALE = 0.07
"""Prior scale of half the logarithm of the ratio of the two factors."""
WAITING_SCALE = 0.1
"""Prior scale of the wait per collective, in latencies of the calibration's slowest collective."""
MAX_WAITING = 4.0
"""Maximum wait, in the unit of the calibration's slowest latency."""
MAX_TRIALS = 10_000
_PROBE = 0.01
"""Relative change for finite-difference slopes; small enough that what hides what in a step hardly changes."""
_LONGEST_S = 1e9
_START_WAITING = 1e-3
"""Start value of the wait: a gradient method should not start at its bound, 0."""
_Rows = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TrialResidual:
    """One trial: slopes of its predicted step under the uncorrected calibration, and the measured step.

    Where collectives overlap ops, a step is no sum. The slopes at no correction add up to the step.

    Args:
        compute_s: seconds of the step that scale with the factor of ops.
        comm_s: exposed seconds that scale with the factor of collectives.
        other_s: everything else, such as the optimizer.
        num_waits: collectives of a step that ranks wait for between ops.
        measured_s: median step time.
    """

    compute_s: float
    comm_s: float
    other_s: float
    num_waits: float
    measured_s: float

    @staticmethod
    def of(predict: Callable[[Correction], float], measured_s: float) -> TrialResidual:
        """Linearise ``predict``, which returns seconds of the trial's step under a correction."""
        if not 0.0 < measured_s < float("inf"):
            raise InputError("measured_s", str(measured_s), "expected more than 0 s")
        plain_s = predict(Correction(1.0, 1.0, 0.0, 0))
        compute_s, comm_s, waits = (
            max(0.0, predict(Correction(*probe, 0)) - plain_s) / _PROBE
            for probe in ((1.0 + _PROBE, 1.0, 0.0), (1.0, 1.0 + _PROBE, 0.0), (1.0, 1.0, _PROBE * plain_s))
        )
        return TrialResidual(compute_s, comm_s, max(0.0, plain_s - compute_s - comm_s), waits / plain_s, measured_s)

    def predicted_s(self, correction: Correction) -> float:
        """Predicted step time under a correction."""
        return (
            correction.compute * self.compute_s
            + correction.network * self.comm_s
            + correction.waiting_s * self.num_waits
            + self.other_s
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: object, path: str = "experience") -> TrialResidual:
        """Inverse of ``to_dict``; raises ``InputError`` that names the field below ``path``."""
        entry = Fields(data, path, tuple(field.name for field in fields(TrialResidual)))
        return TrialResidual(
            entry.number("compute_s", high=_LONGEST_S),
            entry.number("comm_s", high=_LONGEST_S),
            entry.number("other_s", high=_LONGEST_S),
            entry.number("num_waits", high=_LONGEST_S),
            entry.positive("measured_s"),
        )


def fit_correction(calibration: Calibration, experiences: Sequence[TrialResidual]) -> Calibration:
    """Return the calibration with one more correction, fitted to all of ``experiences``; it replaces the previous one.

    Soft-L1 regression (Charbonnier et al. 1997, as in ``scipy.optimize.least_squares``) of the logarithms of predicted
    over measured times, with the prior as extra rows. Deterministic.

    Raises:
        InputError: for no or too many trials, and for a trial that predicts no time.
    """
    if not 0 < len(experiences) <= MAX_TRIALS:
        raise InputError("experiences", len(experiences), f"expected 1 to {MAX_TRIALS} trials")
    for at, one in enumerate(experiences):
        if not one.compute_s + one.comm_s > 0 or not one.other_s >= 0:
            limit = "expected ops and collectives above 0 s, and the rest at least 0 s"
            raise InputError(f"experiences[{at}]", str(one), limit)
    from scipy.optimize import least_squares  # import takes 0.5 s; services and plans that do not learn skip it

    fit = _Fit(experiences, WAITING_SCALE * _latency_s(calibration))
    low, high = math.log(Correction.LOW), math.log(Correction.HIGH)
    found = least_squares(
        fit.residuals,
        np.array([0.0, 0.0, _START_WAITING]),
        fit.jacobian,
        bounds=([low, low, 0.0], [high, high, MAX_WAITING / WAITING_SCALE]),
        loss="soft_l1",
    )
    compute, network = (min(max(math.exp(x), Correction.LOW), Correction.HIGH) for x in found.x[:2])
    correction = Correction(compute, network, float(found.x[2]) * fit.wait_scale_s, len(experiences))
    return replace(calibration, corrections=(*calibration.corrections, correction))


class _Fit:
    """Residuals and their Jacobian in (log op factor, log collective factor, wait in its scale).

    Rows: one per trial, then the prior's common factor, ratio and wait.
    """

    def __init__(self, experiences: Sequence[TrialResidual], wait_scale_s: float) -> None:
        self.wait_scale_s = wait_scale_s
        parts = [(one.compute_s, one.comm_s, one.num_waits * wait_scale_s) for one in experiences]
        self._parts_s: _Rows = np.array(parts, dtype=np.float64)
        self._others_s: _Rows = np.array([one.other_s for one in experiences])
        self._measured_s: _Rows = np.array([one.measured_s for one in experiences])
        half = np.array([0.5 / COMMON_FACTOR_SCALE, 0.5 / FACTOR_RATIO_SCALE])
        self._prior: _Rows = np.array([[half[0], half[0], 0.0], [half[1], -half[1], 0.0], [0.0, 0.0, 1.0]])

    def residuals(self, x: _Rows) -> _Rows:
        steps_s = self._corrected_s(x).sum(axis=1) + self._others_s
        return np.concatenate([np.log(steps_s / self._measured_s) / NOISE_SCALE, self._prior @ x])

    def jacobian(self, x: _Rows) -> _Rows:
        corrected_s = self._corrected_s(x)
        steps_s = corrected_s.sum(axis=1) + self._others_s
        slopes_s = np.column_stack([corrected_s[:, :2], self._parts_s[:, 2]])
        return np.vstack([slopes_s / steps_s[:, None] / NOISE_SCALE, self._prior])

    def _corrected_s(self, x: _Rows) -> _Rows:
        factors: _Rows = np.array([math.exp(x[0]), math.exp(x[1]), x[2]])
        return self._parts_s * factors


def drop_last_correction(calibration: Calibration) -> Calibration:
    """Remove the last correction; raises ``InputError`` if there is none."""
    if not calibration.corrections:
        raise InputError("corrections", 0, "expected at least one correction")
    return replace(calibration, corrections=calibration.corrections[:-1])


def _latency_s(calibration: Calibration) -> float:
    """Largest time of the smallest measured message over all collectives."""
    return max((point.median_s for fit in calibration.collectives for point in fit.points[:1]), default=1e-3)
