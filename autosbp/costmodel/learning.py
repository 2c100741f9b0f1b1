"""What trials teach: factors by which a cluster's predictions are corrected.

A calibration measures collectives and ops by themselves. In a step they meet: caches are shared, ranks come late, kernels
slow each other down. A few trials tell by how much; three numbers per cluster, kept near what was measured by a prior and
within bounds, so that one odd trial cannot spoil a calibration. Every lesson is a new version of it, and can be undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import lsq_linear

from autosbp.costmodel.calibration import Calibration, Correction
from autosbp.costmodel.collectives import StepCollectives
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Costs, Strategy
from autosbp.sbp.parameters import parameter_flow

NOISE = 0.05
"""Standard deviation of a trial's time from a right prediction, relative."""
PRIOR = 0.3
"""The same of factors from 1, before any trial."""
LATENCIES = 4.0
"""The same of waiting from 0, in latencies of the calibration's slowest collective."""
MAX_TRIALS = 10_000


@dataclass(frozen=True, slots=True)
class Experience:
    """One trial. Seconds that the calibration predicts without corrections, and the measured step.

    Args:
        compute_s: of ops.
        comm_s: of collectives that are not hidden.
        other_s: of everything else, such as the optimizer.
        num_waits: collectives of a step that ranks wait for between ops.
        measured_s: median step time.
    """

    compute_s: float
    comm_s: float
    other_s: float
    num_waits: int
    measured_s: float

    @staticmethod
    def of(graph: LogicalGraph, strategy: Strategy, costs: Costs, measured_s: float) -> Experience:
        """``costs`` are those of ``strategy`` under the calibration without corrections."""
        if not 0.0 < measured_s < float("inf"):
            raise InputError("measured_s", str(measured_s), "more than 0 seconds are expected")
        other_s = costs.step_time_s - costs.compute_s - costs.exposed_comm_s
        waits = count_waits(graph, strategy)
        return Experience(costs.compute_s, costs.exposed_comm_s, other_s, waits, measured_s)


def count_waits(graph: LogicalGraph, strategy: Strategy) -> int:
    """Collectives of one step between ops; ``graph`` has its batch symbolic."""
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    phases = StepCollectives(bound, strategy, parameter_flow(bound, strategy)).phases()
    return sum(times * sum(call.phase != "sync" for call in calls) for calls, times in phases)


def learn(calibration: Calibration, experiences: Sequence[Experience]) -> Calibration:
    """The calibration with one more correction, fitted to all of ``experiences`` in place of what it had learned.

    Least squares of relative errors with the prior as further rows. Raises ``InputError`` for no or too many trials.
    """
    if not 0 < len(experiences) <= MAX_TRIALS:
        raise InputError("experiences", len(experiences), f"1 to {MAX_TRIALS} trials are expected")
    wait_scale_s = LATENCIES * _latency_s(calibration)
    rows = np.array([[one.compute_s, one.comm_s, one.num_waits] for one in experiences], dtype=np.float64)
    measured = np.array([one.measured_s for one in experiences])
    target = 1.0 - np.array([one.other_s for one in experiences]) / measured
    prior = np.diag([1.0 / PRIOR, 1.0 / PRIOR, 1.0 / wait_scale_s])
    low, high = Correction.LOW, Correction.HIGH
    found = lsq_linear(
        np.vstack([rows / measured[:, None] / NOISE, prior]),
        np.concatenate([target / NOISE, [1.0 / PRIOR, 1.0 / PRIOR, 0.0]]),
        bounds=([low, low, 0.0], [high, high, 4.0 * wait_scale_s]),
    )
    compute, network, waiting_s = (float(value) for value in found.x)
    correction = Correction(compute, network, waiting_s, len(experiences))
    return replace(calibration, corrections=(*calibration.corrections, correction))


def unlearn(calibration: Calibration) -> Calibration:
    """Without its last correction; raises ``InputError`` where there is none."""
    if not calibration.corrections:
        raise InputError("corrections", 0, "at least one correction is expected")
    return replace(calibration, corrections=calibration.corrections[:-1])


def _latency_s(calibration: Calibration) -> float:
    """The largest time of a message of no bytes."""
    return max((point.median_s for fit in calibration.collectives for point in fit.points[:1]), default=1e-3)
