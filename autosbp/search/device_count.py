"""Search for fewer devices with the same speed.

Plans use all devices of the cluster. If the model or the batch is small or links are slow, some devices only repeat
the work of others or wait for communication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InfeasibleError, InputError
from autosbp.plan.plan import Costs, Strategy
from autosbp.search.plan_options import PlanOptions

EQUAL_SPEED = 1.01
"""Step time, relative to the best, at which fewer devices count as equally fast."""
SHARE = 0.25
"""Share of the time limit for each number of devices."""

Found = tuple[Strategy, Costs]
Search = Callable[[Cluster, Calibration | None, PlanOptions], Found]


def fewer_devices(
    plan: Found,
    cluster: Cluster,
    calibration: Calibration | None,
    options: PlanOptions,
    search: Search,
    least_s: Callable[[Cluster], float],
    stopped: Callable[[], bool] = lambda: False,
) -> Mapping[str, Any] | None:
    """The smallest number of devices that is as fast for the same batch, with its step time; None if all are needed.

    Repeatedly halves the outermost level that has several units, while the step stays as fast.

    Args:
        plan: strategy on all devices, with its costs.
        cluster: with all devices.
        calibration: of ``cluster``.
        options: of the plan. Pins, stages of ops and parallel degrees apply to all devices: with any of them, returns
            None.
        search: finds the best strategy on another cluster, with its costs.
        least_s: least step time that the model's work allows on another cluster; saves searches that cannot succeed.
        stopped: whether to end the search.

    Returns:
        ``num_devices`` and ``step_time_s`` in seconds.
    """
    if cluster.groups:
        return None  # which group would lose devices is undefined
    if options.pins or options.stage_of or options.data_parallel or options.tensor_parallel:
        return None  # these options apply to all devices
    asked = replace(
        options,
        baselines=(),
        time_limit_s=SHARE * options.time_limit_s,
        global_batch=options.global_batch or 8 * cluster.num_devices,
    )
    found, best_s = None, plan[1].step_time_s
    while not stopped() and (half := _half(cluster, calibration)) is not None:
        cluster, calibration = half
        if least_s(cluster) > EQUAL_SPEED * best_s:
            break
        try:
            _, costs = search(cluster, calibration, asked)
        except (InfeasibleError, InputError):  # out of memory, or stages and microbatches do not divide
            break
        if costs.step_time_s > EQUAL_SPEED * best_s:
            break
        best_s = min(best_s, costs.step_time_s)
        found = {"num_devices": cluster.num_devices, "step_time_s": costs.step_time_s}
    return found


def _half(cluster: Cluster, calibration: Calibration | None) -> tuple[Cluster, Calibration | None] | None:
    """Half of the outermost units, with the measurements of groups that still exist; None if they cannot be halved."""
    at = next((at for at, level in enumerate(cluster.levels) if level.count > 1), None)
    if at is None or cluster.levels[at].count % 2:
        return None
    levels = list(cluster.levels)
    levels[at] = replace(levels[at], count=levels[at].count // 2)
    half = replace(cluster, name=f"{cluster.name}, half", levels=tuple(levels))
    if calibration is None:
        return half, None
    fits = tuple(fit for fit in calibration.collectives if _has_groups(half, fit.group_shape))
    return half, replace(calibration, cluster=half, collectives=fits)


def _has_groups(cluster: Cluster, group_shape: tuple[int, ...]) -> bool:
    return all(count <= level.count for count, level in zip(group_shape, cluster.levels, strict=True))
