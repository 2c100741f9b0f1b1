"""Whether fewer devices would do. Plans use all that they are given; where a model is small or links are slow, some of them
only repeat what others do, or wait for messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InfeasibleError, InputError
from autosbp.plan import Costs, Strategy
from autosbp.search.plan_options import PlanOptions

BUSY = 0.5
"""Where computation takes this part of a step, and no two devices do the same, half of the devices are not looked at: they
would compute twice as long."""
SAME = 1.01
"""Times the step, that fewer devices may take to be as fast."""
SHARE = 0.25
"""Of the time limit, for each number of devices."""

Found = tuple[Strategy, Costs]
Search = Callable[[Cluster, Calibration | None, PlanOptions], Found]


def fewer_devices(
    plan: Found,
    cluster: Cluster,
    calibration: Calibration | None,
    options: PlanOptions,
    search: Search,
    stopped: Callable[[], bool] = lambda: False,
) -> Mapping[str, Any] | None:
    """The least number of devices, by halves of the outermost level, that is as fast for the same batch, with its step
    time; None where that is all of them.

    Args:
        plan: the strategy on all devices, with its costs.
        search: the same of the best plan on another cluster.
        stopped: whether no more is to be looked for.
    """
    if cluster.groups:
        return None  # which devices would be left is another question
    if options.pins or options.stage_of or options.data_parallel or options.tensor_parallel:
        return None  # these are said of all devices
    asked = replace(
        options,
        baselines=(),
        time_limit_s=SHARE * options.time_limit_s,
        global_batch=options.global_batch or 8 * cluster.num_devices,
    )
    (strategy, costs), found = plan, None
    best_s = costs.step_time_s
    while (
        not stopped()
        and (repeats(strategy) or costs.compute_s < BUSY * costs.step_time_s)
        and (half := _half(cluster, calibration)) is not None
    ):
        cluster, calibration = half
        try:
            strategy, costs = search(cluster, calibration, asked)
        except (InfeasibleError, InputError):  # memory, or what was asked of stages and microbatches
            break
        if costs.step_time_s > SAME * best_s:
            break
        best_s = min(best_s, costs.step_time_s)
        found = {"num_devices": cluster.num_devices, "step_time_s": costs.step_time_s}
    return found


def repeats(strategy: Strategy) -> bool:
    """Whether devices along some axis do the same: no op is split there."""
    layouts = [layout for signature in strategy.signatures.values() for layout in (*signature.ins, *signature.outs)]
    axes = range(strategy.mesh.ndim)
    return any(all(layout[axis].is_replicated for layout in layouts) for axis in axes)


def _half(cluster: Cluster, calibration: Calibration | None) -> tuple[Cluster, Calibration | None] | None:
    """Half of the outermost units; what was measured of groups that it still has."""
    at = next((at for at, level in enumerate(cluster.levels) if level.count > 1), None)
    if at is None or cluster.levels[at].count % 2:
        return None
    levels = list(cluster.levels)
    levels[at] = replace(levels[at], count=levels[at].count // 2)
    half = replace(cluster, name=f"{cluster.name}, half", levels=tuple(levels))
    if calibration is None:
        return half, None
    fits = tuple(fit for fit in calibration.collectives if _has(half, fit.group_shape))
    return half, replace(calibration, cluster=half, collectives=fits)


def _has(cluster: Cluster, group_shape: tuple[int, ...]) -> bool:
    return all(count <= level.count for count, level in zip(group_shape, cluster.levels, strict=True))
