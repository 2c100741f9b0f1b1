"""``autosbp estimate``: what a model needs, counted from its graph without a search."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autosbp.cli._files import ModelSizes, read_calibration, read_model
from autosbp.cli._format import table
from autosbp.cli._options import AsJson, Calibration, ImageSize, Model, Optimizer, SeqLen
from autosbp.cli._run import console, print_json
from autosbp.cli._unused import refuse_unused
from autosbp.errors import InputError
from autosbp.jsonio import check_integer
from autosbp.units import count, num_bytes, seconds

ClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="CLUSTER", help="Also what its devices would hold and take.")
]
Batch = Annotated[int, typer.Option("--micro-batch", help="Samples that activations are counted for.")]
_OPTIMIZERS = ("adamw", "sgd")


def estimate(
    model: Model,
    cluster: ClusterOption = None,
    calibration: Calibration = None,
    micro_batch: Batch = 1,
    optimizer: Optimizer = "adamw",
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    as_json: AsJson = False,
) -> None:
    """Count parameters, FLOPs and memory of a model, without a search."""
    from autosbp.cluster import load_cluster
    from autosbp.estimate import estimate as estimate_of

    if optimizer not in _OPTIMIZERS:
        raise InputError("optimizer", optimizer, f"one of {', '.join(_OPTIMIZERS)} is expected")
    check_integer("micro_batch", micro_batch, 1, 2**30)
    if cluster is None:
        refuse_unused(estimate, "--cluster is expected with it", calibration=calibration)
    found_cluster = load_cluster(cluster) if cluster is not None else None
    graph = read_model(model, ModelSizes(seq_len, image_size))
    document = estimate_of(graph, micro_batch, optimizer, found_cluster, read_calibration(calibration))
    if as_json:
        print_json(document)
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    out = console()
    memory, batch = document["memory_breakdown"], document["micro_batch"]
    rows = [
        ("parameters", f"{document['num_parameters']:,}"),
        ("parameter bytes", num_bytes(document["parameter_bytes"])),
        ("forward pass of a sample", f"{count(document['flops_per_sample_forward'])}FLOP"),
        (f"optimizer state ({document['optimizer']})", num_bytes(memory["optimizer"])),
        (f"gradients, at the fullest moment of a step of batch {batch}", num_bytes(memory["gradients"])),
        ("activations kept for backward, then", num_bytes(memory["activations"])),
        ("all of it on one device, then", num_bytes(document["memory_bytes_one_device"])),
    ]
    out.print(table(f"{document['name']} (graph {document['graph_hash']})", ("", "value"), rows))
    if "cluster" not in document:
        return
    there = document["cluster"]
    rows = [
        ("devices", f"{there['num_devices']:,}"),
        ("memory of a device", num_bytes(there["memory_limit_bytes"])),
        ("fits on one device", "yes" if there["fits_one_device"] else "no"),
        ("least memory per device: state over all devices", num_bytes(there["least_memory_bytes_per_device"])),
        ("least devices of that memory", f"{there['least_num_devices']:,}"),
        (f"step of batch {batch} on one device, memory aside", seconds(there["one_device_step_time_s"])),
    ]
    out.print(table(f"on {there['name']}", ("", "value"), rows))
