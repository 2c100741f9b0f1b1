"""A cluster with one thing better, and its calibration with what was measured scaled to that.

A faster link sends more bytes per second; its latency, and how long ranks wait for each other, stay. A faster device does
more arithmetic and moves more memory per second; launching a kernel takes as long as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autosbp.cluster import Cluster, Device, Level
from autosbp.costmodel.calibration import Calibration, CollectiveFit, OpTime
from autosbp.groups import Group, Link


def faster_link(
    cluster: Cluster, calibration: Calibration | None, level: int, factor: float
) -> tuple[Cluster, Calibration | None]:
    """``factor`` times the bandwidth between the units of one level, whose groups it is the bottleneck of; of outermost
    units, between groups of unlike ones, too."""
    if cluster.groups:
        link = cluster.link
        assert link is not None
        return _regrouped(
            cluster,
            lambda group: replace(group, levels=_wider(group.levels, level, factor)),
            link if level else replace(link, bandwidth_bytes_per_s=factor * link.bandwidth_bytes_per_s),
        ), None
    faster = replace(cluster, levels=_wider(cluster.levels, level, factor))
    if calibration is None:
        return faster, None
    fits = tuple(_scaled(fit, factor) if _slowest(fit) == level else fit for fit in calibration.collectives)
    return faster, replace(calibration, cluster=faster, collectives=fits)


def faster_device(
    cluster: Cluster, calibration: Calibration | None, factor: float
) -> tuple[Cluster, Calibration | None]:
    """``factor`` times the arithmetic and the memory bandwidth."""
    if cluster.groups:
        return _regrouped(cluster, lambda group: replace(group, device=_sooner(group.device, factor))), None
    faster = replace(cluster, device=_sooner(cluster.device, factor))
    if calibration is None:
        return faster, None
    overhead_s = cluster.device.op_overhead_s

    def sooner(seconds: float) -> float:
        launch_s = min(seconds, overhead_s)
        return launch_s + (seconds - launch_s) / factor

    ops = {key: OpTime(sooner(time.forward_s), sooner(time.backward_s)) for key, time in calibration.ops.items()}
    return faster, replace(calibration, cluster=faster, ops=ops)


def more_memory(cluster: Cluster, calibration: Calibration | None, factor: float) -> tuple[Cluster, Calibration | None]:
    """``factor`` times the memory of a device."""
    if cluster.groups:
        return _regrouped(cluster, lambda group: replace(group, device=_larger(group.device, factor))), None
    larger = replace(cluster, device=_larger(cluster.device, factor))
    return larger, None if calibration is None else replace(calibration, cluster=larger)


def _regrouped(cluster: Cluster, change: Callable[[Group], Group], link: Link | None = None) -> Cluster:
    """With each group changed; clusters with groups have no calibrations."""
    link = link or cluster.link
    assert link is not None
    return Cluster.of_groups(cluster.name, tuple(map(change, cluster.groups)), link, cluster.source)


def _wider(levels: Sequence[Level], at: int, factor: float) -> tuple[Level, ...]:
    found = list(levels)
    found[at] = replace(found[at], bandwidth_bytes_per_s=factor * found[at].bandwidth_bytes_per_s)
    return tuple(found)


def _sooner(device: Device, factor: float) -> Device:
    peaks = {dtype: factor * flops for dtype, flops in device.peak_flops.items()}
    moved = factor * device.memory_bandwidth_bytes_per_s
    return replace(device, peak_flops=peaks, memory_bandwidth_bytes_per_s=moved)


def _larger(device: Device, factor: float) -> Device:
    return replace(device, memory_bytes=round(factor * device.memory_bytes))


def _slowest(fit: CollectiveFit) -> int:
    """The outermost level that a group spans, as ``NetworkModel`` has it."""
    return next((level for level, count in enumerate(fit.group_shape) if count > 1), len(fit.group_shape))


def _scaled(fit: CollectiveFit, factor: float) -> CollectiveFit:
    knots = tuple((start, beta / factor) for start, beta in fit.knots)
    return replace(fit, beta_s_per_byte=fit.beta_s_per_byte / factor, knots=knots)
