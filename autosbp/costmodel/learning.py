"""What trials teach: factors by which a cluster's predictions are corrected.

A calibration measures collectives and ops by themselves. In a step they meet: caches are shared, ranks come late, kernels
slow each other down. A few trials tell by how much; three numbers per cluster, kept near what was measured by a prior and
within bounds, so that one odd trial cannot spoil a calibration. Every lesson is a new version of it, and can be undone.

Trials are noisy, and ops and collectives of one model grow together, so that a few trials cannot tell their factors apart:
the prior keeps their common factor and their ratio near 1. The losses of trials and prior are both soft-L1: one odd trial
is outvoted, little evidence moves little, and strong evidence moves as far as it should. ``tests/costmodel/test_lessons.py``
holds the numbers below to what they are for. The ratio has the loosest prior that passes: in ``benchmarks.prediction`` ops
are 5 to 30 % slower in steps than alone where collectives are right, which a tighter one did not learn.
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
from autosbp.jsonio import Fields

NOISE = 0.1
"""Scale of the logarithm of a trial's time over a right prediction."""
COMMON = 0.05
"""Scale of the logarithm of the factor that ops and collectives share, before any trial."""
RATIO = 0.07
"""The same of half the logarithm of the ratio of their factors."""
WAITING = 0.1
"""Scale of waiting, before any trial, in latencies of the calibration's slowest collective."""
MAX_WAITING = 4.0
"""The most that is ever learned of it, in the same unit."""
MAX_TRIALS = 10_000
_PROBE = 0.01
"""Relative change by which slopes are found; within it, a step hardly changes what hides what."""
_LONGEST_S = 1e9
_START = 1e-3
"""Where the search for waiting begins: its bound is no place for a gradient method to start."""
_Rows = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Experience:
    """One trial. How its step grows under the calibration without corrections, and the measured step.

    Where collectives run beside ops, a step is no sum: these are its slopes at no correction, which add up to the step.

    Args:
        compute_s: seconds of the step that grow with the factor of ops.
        comm_s: those that grow with the factor of collectives, and are not hidden.
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
    def of(predict: Callable[[Correction], float], measured_s: float) -> Experience:
        """``predict`` gives seconds of the trial's step under a correction."""
        if not 0.0 < measured_s < float("inf"):
            raise InputError("measured_s", str(measured_s), "more than 0 seconds are expected")
        plain_s = predict(Correction(1.0, 1.0, 0.0, 0))
        compute_s, comm_s, waits = (
            max(0.0, predict(Correction(*probe, 0)) - plain_s) / _PROBE
            for probe in ((1.0 + _PROBE, 1.0, 0.0), (1.0, 1.0 + _PROBE, 0.0), (1.0, 1.0, _PROBE * plain_s))
        )
        return Experience(compute_s, comm_s, max(0.0, plain_s - compute_s - comm_s), waits / plain_s, measured_s)

    def predicted_s(self, correction: Correction) -> float:
        """The step under a correction."""
        return (
            correction.compute * self.compute_s
            + correction.network * self.comm_s
            + correction.waiting_s * self.num_waits
            + self.other_s
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: object, path: str = "experience") -> Experience:
        """Inverse of ``to_dict``; raises ``InputError`` that names the field below ``path``."""
        entry = Fields(data, path, tuple(field.name for field in fields(Experience)))
        return Experience(
            entry.number("compute_s", high=_LONGEST_S),
            entry.number("comm_s", high=_LONGEST_S),
            entry.number("other_s", high=_LONGEST_S),
            entry.number("num_waits", high=_LONGEST_S),
            entry.positive("measured_s"),
        )


def learn(calibration: Calibration, experiences: Sequence[Experience]) -> Calibration:
    """The calibration with one more correction, fitted to all of ``experiences`` in place of what it had learned.

    Soft-L1 regression (Charbonnier et al. 1997, as ``scipy.optimize.least_squares`` has it) of logarithms of predicted
    over measured times, with the prior as further rows. Deterministic. Raises ``InputError`` for no or too many trials,
    and for one that predicts no time.
    """
    if not 0 < len(experiences) <= MAX_TRIALS:
        raise InputError("experiences", len(experiences), f"1 to {MAX_TRIALS} trials are expected")
    for at, one in enumerate(experiences):
        if not one.compute_s + one.comm_s > 0 or not one.other_s >= 0:
            limit = "seconds of ops and collectives above 0, and others of at least 0, are expected"
            raise InputError(f"experiences[{at}]", str(one), limit)
    from scipy.optimize import least_squares  # takes half a second, for which a service or a plan need not wait

    fit = _Fit(experiences, WAITING * _latency_s(calibration))
    low, high = math.log(Correction.LOW), math.log(Correction.HIGH)
    found = least_squares(
        fit.residuals,
        np.array([0.0, 0.0, _START]),
        fit.jacobian,
        bounds=([low, low, 0.0], [high, high, MAX_WAITING / WAITING]),
        loss="soft_l1",
    )
    compute, network = (min(max(math.exp(x), Correction.LOW), Correction.HIGH) for x in found.x[:2])
    correction = Correction(compute, network, float(found.x[2]) * fit.wait_scale_s, len(experiences))
    return replace(calibration, corrections=(*calibration.corrections, correction))


class _Fit:
    """Residuals of (log of the op factor, log of the collective factor, waiting in its scale), and their slopes: a row
    per trial, then common factor, ratio, and waiting of the prior."""

    def __init__(self, experiences: Sequence[Experience], wait_scale_s: float) -> None:
        self.wait_scale_s = wait_scale_s
        parts = [(one.compute_s, one.comm_s, one.num_waits * wait_scale_s) for one in experiences]
        self._parts_s: _Rows = np.array(parts, dtype=np.float64)
        self._others_s: _Rows = np.array([one.other_s for one in experiences])
        self._measured_s: _Rows = np.array([one.measured_s for one in experiences])
        half = np.array([0.5 / COMMON, 0.5 / RATIO])
        self._prior: _Rows = np.array([[half[0], half[0], 0.0], [half[1], -half[1], 0.0], [0.0, 0.0, 1.0]])

    def residuals(self, x: _Rows) -> _Rows:
        steps_s = self._corrected_s(x).sum(axis=1) + self._others_s
        return np.concatenate([np.log(steps_s / self._measured_s) / NOISE, self._prior @ x])

    def jacobian(self, x: _Rows) -> _Rows:
        corrected_s = self._corrected_s(x)
        steps_s = corrected_s.sum(axis=1) + self._others_s
        slopes_s = np.column_stack([corrected_s[:, :2], self._parts_s[:, 2]])
        return np.vstack([slopes_s / steps_s[:, None] / NOISE, self._prior])

    def _corrected_s(self, x: _Rows) -> _Rows:
        factors: _Rows = np.array([math.exp(x[0]), math.exp(x[1]), x[2]])
        return self._parts_s * factors


def unlearn(calibration: Calibration) -> Calibration:
    """Without its last correction; raises ``InputError`` where there is none."""
    if not calibration.corrections:
        raise InputError("corrections", 0, "at least one correction is expected")
    return replace(calibration, corrections=calibration.corrections[:-1])


def _latency_s(calibration: Calibration) -> float:
    """The largest time of a message of no bytes."""
    return max((point.median_s for fit in calibration.collectives for point in fit.points[:1]), default=1e-3)
