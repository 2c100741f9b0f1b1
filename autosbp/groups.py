"""Groups of unlike nodes in one cluster: what they have in common, and what all of them together are.

A program that runs on all devices at once goes at the pace of the slowest: the least arithmetic, memory and bandwidth of
any, the longest latency. Stages of a pipeline are each on the devices of one group, where they fit, at that group's pace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autosbp.hardware import Curves, Device, Host, Level, read_device, read_host, read_levels
from autosbp.jsonio import Fields


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that are alike; fields as of a cluster."""

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
class Link:
    """Between a unit of the outermost level of one group and one of another; fields as of a level."""

    latency_s: float
    bandwidth_bytes_per_s: float

    def to_dict(self) -> dict[str, Any]:
        return {"latency_s": self.latency_s, "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s}


def read_group(data: object, path: str) -> Group:
    """A group from its mapping; raises ``InputError``."""
    fields = Fields(data, path, ("name", "device", "levels", "host"))
    return Group(
        fields.text("name"),
        read_levels(fields.sequence("levels"), f"{path}.levels"),
        read_device(fields.raw("device"), f"{path}.device"),
        read_host(fields.raw("host"), f"{path}.host") if fields.has("host") else None,
    )


def read_link(data: object) -> Link:
    """The link between groups from its mapping; raises ``InputError``."""
    fields = Fields(data, "link", ("latency_s", "bandwidth_bytes_per_s"))
    return Link(fields.number("latency_s", low=0.0, high=10.0), fields.rate("bandwidth_bytes_per_s"))


def joined_levels(groups: Sequence[Group], link: Link | None) -> tuple[Level, ...]:
    """The units of all groups, joined by the slowest of their links, and of what is between the groups."""
    found = []
    for at, first in enumerate(groups[0].levels):
        same: list[Level | Link] = [group.levels[at] for group in groups]
        if at == 0 and link is not None:
            same.append(link)
        count = sum(group.levels[0].count for group in groups) if at == 0 else first.count
        latency_s, bytes_per_s = max(one.latency_s for one in same), min(one.bandwidth_bytes_per_s for one in same)
        found.append(Level(first.name, count, latency_s, bytes_per_s))
    return tuple(found)


def joined_host(groups: Sequence[Group]) -> Host | None:
    """The least of all hosts; None where a group has none."""
    hosts = [group.host for group in groups if group.host is not None]
    if len(hosts) < len(groups):
        return None
    return Host(
        min(host.link_bytes_per_s for host in hosts),
        min(host.memory_bandwidth_bytes_per_s for host in hosts),
        min(host.memory_bytes for host in hosts),
    )


def slowest_of(devices: Sequence[Device]) -> Device:
    """A device that no op is slower on than on all of these, with the least memory: one of them that is the slowest in
    everything, or one made up."""
    return _extreme(devices, "slowest", min, max)


def quickest_of(devices: Sequence[Device]) -> Device:
    """A device that no op is quicker on any of these than on, with the most memory."""
    return _extreme(devices, "quickest", max, min)


def _extreme(
    devices: Sequence[Device],
    word: str,
    rate: Callable[[Iterable[float]], float],
    wait: Callable[[Iterable[float]], float],
) -> Device:
    """Rates are what large kernels reach, so that peaks and efficiencies of different kinds of devices compare."""
    names = sorted({dtype for device in devices for dtype in device.peak_flops})
    rates = {name: rate(device.reached(name) for device in devices) for name in names}
    copied = rate(device.copied_bytes_per_s for device in devices)
    overhead_s = wait(device.op_overhead_s for device in devices)
    memory = int(rate(device.memory_bytes for device in devices))
    for device in devices:
        same = device.copied_bytes_per_s == copied and device.op_overhead_s == overhead_s
        if same and all(device.reached(name) == rates[name] for name in names):
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
        Curves(1.0, 1.0, contention, 1, 1, 1) if contention else None,
    )
