"""One cluster: its devices and its network, as its spec has them."""

from __future__ import annotations

from typing import Any

from autosbp.units import count, num_bytes
from service.models import ClusterRow
from service.web.presenters.parts import Fact, Figure, Table
from service.web.text import number, rate, seconds

_LEVELS = (("between devices",), ("between nodes", "inside a node"))


def figures(row: ClusterRow) -> tuple[Figure, ...]:
    """What the page leads with."""
    device = row.document["device"]
    peak = max(device["peak_flops"].items(), key=lambda item: item[1])
    return (
        Figure("Devices", number(row.num_devices), _counts(row.document["levels"])),
        Figure("Device", device["name"], device["kind"]),
        Figure("Memory of a device", num_bytes(device["memory_bytes"])),
        Figure("Peak", f"{count(peak[1])}FLOP/s", peak[0]),
        Figure("Memory bandwidth", rate(device["memory_bandwidth_bytes_per_s"])),
    )


def levels(row: ClusterRow) -> Table:
    """The network, outermost level first."""
    every = row.document["levels"]
    rows = tuple(
        (
            level["name"],
            words,
            number(level["count"]),
            seconds(level["latency_s"]),
            rate(level["bandwidth_bytes_per_s"]),
        )
        for level, words in zip(every, _LEVELS[len(every) - 1], strict=True)
    )
    return Table(("Level", "Joins", "Units", "Latency of a step", "Bandwidth of a unit"), rows, 2)


def device_facts(row: ClusterRow) -> tuple[Fact, ...]:
    """The rest of what the spec says."""
    device = row.document["device"]
    peaks = ", ".join(f"{name} {count(value)}FLOP/s" for name, value in device["peak_flops"].items())
    facts = [Fact("Peaks", peaks), Fact("Launching a kernel", seconds(device["op_overhead_s"]))]
    curves = device.get("curves")
    if curves:
        reached = f"products {100 * curves['matmul']:.0f} %, copies {100 * curves['memory']:.0f} %"
        facts.append(Fact("Kernels reach of the peaks", reached))
    else:
        facts.append(Fact("Kernels reach of the peaks", f"{100 * device['efficiency']:.0f} %"))
    facts += [Fact(f"Group {group['name']}", _group(group)) for group in row.document.get("groups", ())]
    if row.document.get("source"):
        facts.append(Fact("Source", row.document["source"]))
    return tuple(facts)


def _group(group: dict[str, Any]) -> str:
    """Of a cluster with groups, whose own device has the least of all."""
    device = group["device"]
    return f"{_counts(group['levels'])} of {device['name']}, {num_bytes(device['memory_bytes'])} each"


def _counts(levels: list[dict[str, Any]]) -> str:
    return " × ".join(f"{level['count']} {level['name']}" for level in levels)
