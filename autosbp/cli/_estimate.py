"""``autosbp estimate``: memory, FLOPs and devices that a model needs, computed from its graph without a search."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autosbp.cli._exit_codes import console, print_json
from autosbp.cli._files import ModelSizes, read_calibration, read_model
from autosbp.cli._option_checks import refuse_unused
from autosbp.cli._options import AsJson, Calibration, ImageSize, Model, Optimizer, Precision, SeqLen
from autosbp.cli._text_tables import table
from autosbp.utils.formatting import count, num_bytes, seconds
from autosbp.utils.json_io import check_integer

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="CLUSTER", help="Also estimate memory use and step time on this cluster's devices."
    ),
]
Batch = Annotated[
    int, typer.Option("--micro-batch", help="Microbatch size (samples) for which activation memory is estimated.")
]


def estimate(
    model: Model,
    cluster: ClusterOption = None,
    calibration: Calibration = None,
    micro_batch: Batch = 1,
    optimizer: Optimizer = "adamw",
    precision: Precision = "auto",
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    as_json: AsJson = False,
) -> None:
    """Count the parameters, FLOPs and memory of a model, without a search."""
    from autosbp.cluster.spec import load_cluster
    from autosbp.graph.precision import AUTO, TF32, in_precision
    from autosbp.report.model_estimate import estimate as estimate_of
    from autosbp.search.plan_options import PlanOptions

    options = PlanOptions(optimizer=optimizer, precision=precision)
    check_integer("micro_batch", micro_batch, 1, 2**30)
    if cluster is None:
        refuse_unused(estimate, "requires --cluster", calibration=calibration)
    found_cluster = load_cluster(cluster) if cluster is not None else None
    if found_cluster is None:
        chosen = None if precision == AUTO else precision
    else:
        chosen = options.on(found_cluster).precision
        found_cluster = found_cluster.with_tf32() if chosen == TF32 else found_cluster
    graph = read_model(model, ModelSizes(seq_len, image_size))
    document = {
        **estimate_of(
            in_precision(graph, chosen), micro_batch, optimizer, found_cluster, read_calibration(calibration)
        ),
        "graph_hash": graph.graph_hash,
        "precision": chosen,
    }
    if as_json:
        print_json(document)
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    out = console()
    memory, batch = document["memory_breakdown"], document["micro_batch"]
    rows = [
        ("precision", document["precision"] or "as captured"),
        ("parameters", f"{document['num_parameters']:,}"),
        ("parameter bytes", num_bytes(document["parameter_bytes"])),
        ("forward FLOPs per sample", f"{count(document['flops_per_sample_forward'])}FLOP"),
        (f"optimizer state ({document['optimizer']})", num_bytes(memory["optimizer"])),
        (f"gradients, at peak memory of a step of batch {batch}", num_bytes(memory["gradients"])),
        ("activations kept for backward, at peak", num_bytes(memory["activations"])),
        ("total on one device, at peak", num_bytes(document["memory_bytes_one_device"])),
    ]
    out.print(table(f"{document['name']} (graph {document['graph_hash']})", ("", "value"), rows))
    if "cluster" not in document:
        return
    there = document["cluster"]
    rows = [
        ("devices", f"{there['num_devices']:,}"),
        ("memory per device for tensors", num_bytes(there["memory_limit_bytes"])),
        ("fits on one device", "yes" if there["fits_one_device"] else "no"),
        (
            "minimum memory per device: state sharded over all devices",
            num_bytes(there["least_memory_bytes_per_device"]),
        ),
        ("minimum number of devices for that memory", f"{there['least_num_devices']:,}"),
        (f"step of batch {batch} on one device, ignoring memory", seconds(there["one_device_step_time_s"])),
    ]
    out.print(table(f"on {there['name']}", ("", "value"), rows))
