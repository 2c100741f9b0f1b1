"""A cluster with one thing better, and its calibration with what was measured scaled to that.

A faster link sends more bytes per second; its latency, and how long ranks wait for each other, stay. A faster device does
more arithmetic and moves more memory per second; launching a kernel takes as long as before.
"""

from __future__ import annotations

from dataclasses import replace

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import Calibration, CollectiveFit, OpTime


def faster_link(
    cluster: Cluster, calibration: Calibration | None, level: int, factor: float
) -> tuple[Cluster, Calibration | None]:
    """``factor`` times the bandwidth between the units of one level, whose groups it is the bottleneck of."""
    levels = list(cluster.levels)
    levels[level] = replace(levels[level], bandwidth_bytes_per_s=factor * levels[level].bandwidth_bytes_per_s)
    faster = replace(cluster, levels=tuple(levels))
    if calibration is None:
        return faster, None
    fits = tuple(_scaled(fit, factor) if _slowest(fit) == level else fit for fit in calibration.collectives)
    return faster, replace(calibration, cluster=faster, collectives=fits)


def faster_device(
    cluster: Cluster, calibration: Calibration | None, factor: float
) -> tuple[Cluster, Calibration | None]:
    """``factor`` times the arithmetic and the memory bandwidth."""
    device = cluster.device
    peaks = {dtype: factor * flops for dtype, flops in device.peak_flops.items()}
    moved = factor * device.memory_bandwidth_bytes_per_s
    faster = replace(cluster, device=replace(device, peak_flops=peaks, memory_bandwidth_bytes_per_s=moved))
    if calibration is None:
        return faster, None
    overhead_s = device.op_overhead_s

    def sooner(seconds: float) -> float:
        launch_s = min(seconds, overhead_s)
        return launch_s + (seconds - launch_s) / factor

    ops = {key: OpTime(sooner(time.forward_s), sooner(time.backward_s)) for key, time in calibration.ops.items()}
    return faster, replace(calibration, cluster=faster, ops=ops)


def more_memory(cluster: Cluster, calibration: Calibration | None, factor: float) -> tuple[Cluster, Calibration | None]:
    """``factor`` times the memory of a device."""
    device = replace(cluster.device, memory_bytes=round(factor * cluster.device.memory_bytes))
    larger = replace(cluster, device=device)
    return larger, None if calibration is None else replace(calibration, cluster=larger)


def _slowest(fit: CollectiveFit) -> int:
    """The outermost level that a group spans, as ``NetworkModel`` has it."""
    return next((level for level, count in enumerate(fit.group_shape) if count > 1), len(fit.group_shape))


def _scaled(fit: CollectiveFit, factor: float) -> CollectiveFit:
    knots = tuple((start, beta / factor) for start, beta in fit.knots)
    return replace(fit, beta_s_per_byte=fit.beta_s_per_byte / factor, knots=knots)
