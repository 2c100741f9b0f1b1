"""``autosbp clusters``: list the presets that ``--cluster`` takes, with their devices, links and sources."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autosbp.cli._exit_codes import console, print_json
from autosbp.cli._options import AsJson
from autosbp.cli._text_tables import table
from autosbp.cluster.spec import Cluster, load_cluster, presets
from autosbp.utils.formatting import count, num_bytes, seconds

Preset = Annotated[
    str | None, typer.Argument(metavar="PRESET", help="Show this preset, or PRESET:NODES, in full.", show_default=False)
]


def clusters(preset: Preset = None, as_json: AsJson = False) -> None:
    """List the cluster presets, or show one with the sources of its numbers.

    With PRESET and --json, print a cluster file that can serve as a template for your own.
    """
    if preset is not None:
        if as_json:
            print_json(load_cluster(preset).to_dict())
        else:
            _show(cluster_document(preset))
        return
    found = {name: cluster_document(name) for name in sorted(presets()["clusters"])}
    if as_json:
        print_json({"clusters": found})
        return
    rows = [_row(name, load_cluster(name)) for name in found]
    columns = ("preset", "device", "memory", "its traffic", "16-bit FLOP/s", "per node", "link of one", "of the node")
    console().print(table("", columns, rows, left=2))
    console().print(
        "PRESET:NODES sets the number of nodes; autosbp clusters PRESET lists the sources.", highlight=False
    )


def cluster_document(spec: str) -> dict[str, Any]:
    """A cluster's document plus its links' peaks and the source of its device's numbers.

    Raises:
        InputError: the preset is unknown.
    """
    document = load_cluster(spec).to_dict()
    devices, links = presets()["devices"], presets()["clusters"].get(spec.partition(":")[0], {}).get("links", {})
    name = document["device"]["name"]
    return {**document, "links": links, "device_source": devices[name]["source"] if name in devices else ""}


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
    """Format a rate in powers of ten, as data sheets do."""
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
    if document.get("price_per_device_hour") is not None:
        facts.append(("price for one hour", f"{document['price_per_device_hour']:g} USD"))
    facts += [(f"curves: {name}", f"{value:g}") for name, value in device.get("curves", {}).items()]
    console().print(table(device["name"], ("peak and achievable rates", ""), facts))
    for group in document.get("groups", ()):
        size = " x ".join(str(level["count"]) for level in group["levels"])
        memory = num_bytes(group["device"]["memory_bytes"])
        console().print(f"group {group['name']}: {size} of {group['device']['name']}, {memory} each", highlight=False)
    for name, link in document["links"].items():
        said = f"link {name}: peak {_rate(link['peak_bytes_per_s'])}; reached: {link['reached']}"
        console().print(said, highlight=False)
    console().print(f"cluster: {document['source']}", highlight=False)
    console().print(f"device: {document['device_source']}", highlight=False)
