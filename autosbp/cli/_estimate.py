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
    from autosbp.costmodel.model_work import sequence_length
    from autosbp.graph.precision import AUTO, in_precision
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
        found_cluster = found_cluster.in_precision(chosen)
    graph = read_model(model, ModelSizes(seq_len, image_size))
    document = {
        **estimate_of(
            in_precision(graph, chosen), micro_batch, optimizer, found_cluster, read_calibration(calibration)
        ),
        "graph_hash": graph.graph_hash,
        "sequence_length": sequence_length(graph.bind(**dict.fromkeys(graph.symbols, micro_batch))),
        "precision": chosen,
    }
    if as_json:
        print_json(document)
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    out = console()
    batch = document["micro_batch"]
    rows = [
        ("precision", document["precision"] or "as captured"),
        ("sequence length", f"{document['sequence_length']:,} tokens" if document["sequence_length"] else "-"),
        ("parameters", f"{document['num_parameters']:,}"),
        ("forward FLOPs per sample", f"{count(document['flops_per_sample_forward'])}FLOP"),
        *((f"{row['what']}, {row['dtype']}", num_bytes(row["bytes"])) for row in document["training_state"]),
    ]
    peak = document["memory_breakdown"]
    rows += [
        (f"activations at the peak of a step of batch {batch}", num_bytes(peak["activations"])),
        ("temporaries at the peak", num_bytes(peak["temporaries"])),
        ("total on one device, at the peak", num_bytes(document["memory_bytes_one_device"])),
    ]
    title = f"{document['name']} (graph {document['graph_hash']}), optimizer {document['optimizer']}"
    out.print(table(title, ("", "value"), rows))
    if peak["gradients"] < sum(row["bytes"] for row in document["training_state"] if row["what"] == "gradients"):
        held = num_bytes(peak["gradients"])
        out.print(f"At the peak {held} of gradients exist: backward has not made the others yet.", style="dim")
    fitting = [
        (
            row["device"],
            num_bytes(row["memory_limit_bytes"]),
            f"yes, batch {batch}" if row["fits_one_device"] else "no",
            f"{row['least_num_devices']:,}",
            row["preset"],
        )
        for row in document["presets"]
    ]
    columns = ("device", "memory for tensors", "fits on one", "at least", "preset")
    out.print(table("devices of the presets", columns, fitting))
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
