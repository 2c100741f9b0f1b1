"""What-if clusters with one resource scaled, and their calibrations scaled accordingly.

A faster link has more bandwidth; its latency, and the time that ranks wait for each other, stay. A faster device has
more FLOP/s and memory bandwidth; its kernel launch time stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autosbp.cluster.node_groups import GroupLink, NodeGroup
from autosbp.cluster.spec import Cluster, Device, Level
from autosbp.costmodel.calibration import Calibration, CollectiveFit, OpTime


def scale_link_bandwidth(
    cluster: Cluster, calibration: Calibration | None, level: int, factor: float
) -> tuple[Cluster, Calibration | None]:
    """Multiply the bandwidth between units of one level by ``factor``, for groups whose bottleneck it is.

    For the outermost level this includes the link between groups of different nodes.
    """
    if cluster.groups:
        link = cluster.link
        assert link is not None
        return _regrouped(
            cluster,
            lambda group: replace(group, levels=_scale_bandwidth(group.levels, level, factor)),
            link if level else replace(link, bandwidth_bytes_per_s=factor * link.bandwidth_bytes_per_s),
        ), None
    faster = replace(cluster, levels=_scale_bandwidth(cluster.levels, level, factor))
    if calibration is None:
        return faster, None
    fits = tuple(_scaled(fit, factor) if _slowest(fit) == level else fit for fit in calibration.collectives)
    return faster, replace(calibration, cluster=faster, collectives=fits)


def scale_device_speed(
    cluster: Cluster, calibration: Calibration | None, factor: float
) -> tuple[Cluster, Calibration | None]:
    """Multiply FLOP/s and memory bandwidth by ``factor``."""
    if cluster.groups:
        return _regrouped(cluster, lambda group: replace(group, device=_scale_device(group.device, factor))), None
    faster = replace(cluster, device=_scale_device(cluster.device, factor))
    if calibration is None:
        return faster, None
    overhead_s = cluster.device.op_overhead_s

    def sooner(seconds: float) -> float:
        launch_s = min(seconds, overhead_s)
        return launch_s + (seconds - launch_s) / factor

    ops = {key: OpTime(sooner(time.forward_s), sooner(time.backward_s)) for key, time in calibration.ops.items()}
    return faster, replace(calibration, cluster=faster, ops=ops)


def scale_device_memory(
    cluster: Cluster, calibration: Calibration | None, factor: float
) -> tuple[Cluster, Calibration | None]:
    """Multiply the memory of a device by ``factor``."""
    if cluster.groups:
        return _regrouped(cluster, lambda group: replace(group, device=_scale_memory(group.device, factor))), None
    larger = replace(cluster, device=_scale_memory(cluster.device, factor))
    return larger, None if calibration is None else replace(calibration, cluster=larger)


def _regrouped(cluster: Cluster, change: Callable[[NodeGroup], NodeGroup], link: GroupLink | None = None) -> Cluster:
    """The cluster with each group changed; clusters with groups have no calibrations."""
    link = link or cluster.link
    assert link is not None
    return Cluster.of_groups(cluster.name, tuple(map(change, cluster.groups)), link, cluster.source)


def _scale_bandwidth(levels: Sequence[Level], at: int, factor: float) -> tuple[Level, ...]:
    found = list(levels)
    found[at] = replace(found[at], bandwidth_bytes_per_s=factor * found[at].bandwidth_bytes_per_s)
    return tuple(found)


def _scale_device(device: Device, factor: float) -> Device:
    peaks = {dtype: factor * flops for dtype, flops in device.peak_flops.items()}
    moved = factor * device.memory_bandwidth_bytes_per_s
    return replace(device, peak_flops=peaks, memory_bandwidth_bytes_per_s=moved)


def _scale_memory(device: Device, factor: float) -> Device:
    return replace(device, memory_bytes=round(factor * device.memory_bytes))


def _slowest(fit: CollectiveFit) -> int:
    """The outermost level that a group spans, as in ``costmodel.network.NetworkModel``."""
    return next((level for level, count in enumerate(fit.group_shape) if count > 1), len(fit.group_shape))


def _scaled(fit: CollectiveFit, factor: float) -> CollectiveFit:
    knots = tuple((start, beta / factor) for start, beta in fit.knots)
    return replace(fit, beta_s_per_byte=fit.beta_s_per_byte / factor, knots=knots)
