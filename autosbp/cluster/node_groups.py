"""Groups of different nodes in one cluster, and the properties of the cluster as a whole.

A program on all devices runs at the pace of the slowest: the lowest FLOP/s, memory and bandwidth of any, the highest
latency. Pipeline stages that fit on the devices of one group run at that group's pace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autosbp.cluster.hardware import Device, EfficiencyCurves, Host, Level, read_device, read_host, read_levels
from autosbp.utils.json_io import Fields


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of one kind; fields as in ``Cluster``."""

    name: str
    levels: tuple[Level, ...]
    device: Device
    host: Host | None = None

    @property
    def num_devices(self) -> int:
        total = 1
        for level in self.levels:
            total *= level.count
        return total

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "device": self.device.to_dict(),
            "levels": [level.to_dict() for level in self.levels],
            **({"host": self.host.to_dict()} if self.host else {}),
        }


@dataclass(frozen=True, slots=True)
class GroupLink:
    """Link between outermost-level units of different groups; fields as in ``Level``."""

    latency_s: float
    bandwidth_bytes_per_s: float

    def to_dict(self) -> dict[str, Any]:
        return {"latency_s": self.latency_s, "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s}


def read_group(data: object, path: str) -> NodeGroup:
    """Read a group from its mapping; raises ``InputError``."""
    fields = Fields(data, path, ("name", "device", "levels", "host"))
    return NodeGroup(
        fields.text("name"),
        read_levels(fields.sequence("levels"), f"{path}.levels"),
        read_device(fields.raw("device"), f"{path}.device"),
        read_host(fields.raw("host"), f"{path}.host") if fields.has("host") else None,
    )


def read_link(data: object) -> GroupLink:
    """Read the link between groups from its mapping; raises ``InputError``."""
    fields = Fields(data, "link", ("latency_s", "bandwidth_bytes_per_s"))
    return GroupLink(fields.number("latency_s", low=0.0, high=10.0), fields.rate("bandwidth_bytes_per_s"))


def combined_levels(groups: Sequence[NodeGroup], link: GroupLink | None) -> tuple[Level, ...]:
    """Levels over the units of all groups, with the slowest of their links and of the link between groups."""
    found = []
    for at, first in enumerate(groups[0].levels):
        same: list[Level | GroupLink] = [group.levels[at] for group in groups]
        if at == 0 and link is not None:
            same.append(link)
        count = sum(group.levels[0].count for group in groups) if at == 0 else first.count
        latency_s, bytes_per_s = max(one.latency_s for one in same), min(one.bandwidth_bytes_per_s for one in same)
        found.append(Level(first.name, count, latency_s, bytes_per_s))
    return tuple(found)


def combined_host(groups: Sequence[NodeGroup]) -> Host | None:
    """The smallest values of all hosts; None if a group has no host."""
    hosts = [group.host for group in groups if group.host is not None]
    if len(hosts) < len(groups):
        return None
    return Host(
        min(host.link_bytes_per_s for host in hosts),
        min(host.memory_bandwidth_bytes_per_s for host in hosts),
        min(host.memory_bytes for host in hosts),
    )


def slowest_device(devices: Sequence[Device]) -> Device:
    """A device on which every op is at least as slow as on each of these, with the least memory.

    It is one of ``devices`` if that is the slowest in everything, else a synthetic one.
    """
    return _combine_devices(devices, "slowest", min, max)


def fastest_device(devices: Sequence[Device]) -> Device:
    """A device on which every op is at least as fast as on each of these, with the most memory."""
    return _combine_devices(devices, "quickest", max, min)


def _combine_devices(
    devices: Sequence[Device],
    word: str,
    rate: Callable[[Iterable[float]], float],
    wait: Callable[[Iterable[float]], float],
) -> Device:
    """Combine devices; rates are those of large kernels, so that different kinds of devices are comparable."""
    names = sorted({dtype for device in devices for dtype in device.peak_flops})
    rates = {name: rate(device.achieved_flops(name) for device in devices) for name in names}
    copied = rate(device.copy_bytes_per_s for device in devices)
    overhead_s = wait(device.op_overhead_s for device in devices)
    memory = int(rate(device.memory_bytes for device in devices))
    for device in devices:
        same = device.copy_bytes_per_s == copied and device.op_overhead_s == overhead_s
        if same and all(device.achieved_flops(name) == rates[name] for name in names):
            return device if device.memory_bytes == memory else replace(device, memory_bytes=memory)
    contention = wait(device.curves.contention if device.curves else 0.0 for device in devices)
    return Device(
        f"{word} of {', '.join(sorted({device.name for device in devices}))}",
        devices[0].kind,
        memory,
        rates,
        copied,
        1.0,
        overhead_s,
        EfficiencyCurves(1.0, 1.0, contention, 1, 1, 1) if contention else None,
    )
