"""A cluster: its devices and network, from its spec."""

from __future__ import annotations

from typing import Any

from autosbp.service.models import ClusterRow
from autosbp.service.web.number_format import number, rate, seconds
from autosbp.service.web.presenters.page_parts import Fact, Figure, Table
from autosbp.utils.formatting import count, num_bytes

_LEVELS = (("between devices",), ("between nodes", "inside a node"))


def figures(row: ClusterRow) -> tuple[Figure, ...]:
    """Key figures at the top of the page."""
    device = row.document["device"]
    peak = max(device["peak_flops"].items(), key=lambda item: item[1])
    return (
        Figure("Devices", number(row.num_devices), _counts(row.document["levels"])),
        Figure("Device", device["name"], device["kind"]),
        Figure("Memory per device", num_bytes(device["memory_bytes"])),
        Figure("Peak", f"{count(peak[1])}FLOP/s", peak[0]),
        Figure("Memory bandwidth", rate(device["memory_bandwidth_bytes_per_s"])),
    )


def levels(row: ClusterRow) -> Table:
    """Table of the network levels, outermost first."""
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
    return Table(("Level", "Joins", "Units", "Latency per step", "Bandwidth per unit"), rows, 2)


def device_facts(row: ClusterRow) -> tuple[Fact, ...]:
    """Remaining facts of the spec."""
    device = row.document["device"]
    peaks = ", ".join(f"{name} {count(value)}FLOP/s" for name, value in device["peak_flops"].items())
    facts = [Fact("Peaks", peaks), Fact("Kernel launch", seconds(device["op_overhead_s"]))]
    curves = device.get("curves")
    if curves:
        reached = f"matrix products {100 * curves['matmul']:.0f} %, copies {100 * curves['memory']:.0f} %"
        facts.append(Fact("Achieved share of peak", reached))
    else:
        facts.append(Fact("Achieved share of peak", f"{100 * device['efficiency']:.0f} %"))
    facts += [Fact(f"Group {group['name']}", _group(group)) for group in row.document.get("groups", ())]
    if row.document.get("source"):
        facts.append(Fact("Source", row.document["source"]))
    return tuple(facts)


def _group(group: dict[str, Any]) -> str:
    """Description of a device group; in a cluster with groups, the cluster's own device has the minimum of each property."""
    device = group["device"]
    return f"{_counts(group['levels'])} of {device['name']}, {num_bytes(device['memory_bytes'])} each"


def _counts(levels: list[dict[str, Any]]) -> str:
    return " × ".join(f"{level['count']} {level['name']}" for level in levels)
