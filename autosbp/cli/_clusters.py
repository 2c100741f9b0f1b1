"""``autosbp clusters``: the presets that ``--cluster`` takes, with their devices, links and sources."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autosbp.cli._format import table
from autosbp.cli._options import AsJson
from autosbp.cli._run import console, print_json
from autosbp.cluster import Cluster, load_cluster, presets
from autosbp.units import count, num_bytes, seconds

Preset = Annotated[
    str | None, typer.Argument(metavar="PRESET", help="One preset, or PRESET:NODES, in full.", show_default=False)
]


def clusters(preset: Preset = None, as_json: AsJson = False) -> None:
    """List the cluster presets; or show one, with where its numbers are from. With --json one is a cluster file, to begin one's
    own with."""
    if preset is not None:
        if as_json:
            print_json(load_cluster(preset).to_dict())
        else:
            _show(described(preset))
        return
    found = {name: described(name) for name in sorted(presets()["clusters"])}
    if as_json:
        print_json({"clusters": found})
        return
    rows = [_row(name, load_cluster(name)) for name in found]
    columns = ("preset", "device", "memory", "its traffic", "16-bit FLOP/s", "a node", "link of one", "of the node")
    console().print(table("", columns, rows, left=2))
    console().print(
        "PRESET:NODES sets the number of nodes; autosbp clusters PRESET tells the sources.", highlight=False
    )


def described(spec: str) -> dict[str, Any]:
    """A cluster's document, with the source of its device's numbers; ``InputError`` for an unknown one."""
    document = load_cluster(spec).to_dict()
    devices = presets()["devices"]
    name = document["device"]["name"]
    return {**document, "device_source": devices[name]["source"] if name in devices else ""}


def _row(name: str, cluster: Cluster) -> tuple[str, ...]:
    device, (outer, *inner) = cluster.device, cluster.levels
    peaks = device.peak_flops
    links = inner[0] if inner else None
    return (
        name,
        device.name,
        num_bytes(device.memory_bytes),
        _rate(device.memory_bandwidth_bytes_per_s),
        count(max(peaks.get("bfloat16", 0.0), peaks.get("float16", 0.0))).strip(),
        str(cluster.devices_per_node),
        _rate(links.bandwidth_bytes_per_s) if links else "-",
        _rate(outer.bandwidth_bytes_per_s),
    )


def _rate(bytes_per_s: float) -> str:
    """In powers of ten, as data sheets have it."""
    return f"{count(bytes_per_s)}B/s"


def _show(document: dict[str, Any]) -> None:
    device = document["device"]
    rows = [
        (level["name"], str(level["count"]), seconds(level["latency_s"]), _rate(level["bandwidth_bytes_per_s"]))
        for level in document["levels"]
    ]
    console().print(table(document["name"], ("level", "units", "latency", "link of one"), rows))
    facts = [(f"{dtype} FLOP/s", count(peak).strip()) for dtype, peak in device["peak_flops"].items()]
    facts.append(("memory", num_bytes(device["memory_bytes"])))
    facts.append(("memory traffic", _rate(device["memory_bandwidth_bytes_per_s"])))
    facts += [(f"curves: {name}", f"{value:g}") for name, value in device.get("curves", {}).items()]
    console().print(table(device["name"], ("peaks, and what kernels reach", ""), facts))
    for group in document.get("groups", ()):
        size = " x ".join(str(level["count"]) for level in group["levels"])
        memory = num_bytes(group["device"]["memory_bytes"])
        console().print(f"group {group['name']}: {size} of {group['device']['name']}, {memory} each", highlight=False)
    console().print(f"cluster: {document['source']}", highlight=False)
    console().print(f"device: {document['device_source']}", highlight=False)
