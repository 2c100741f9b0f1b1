"""Op times and memory on one GPU, predicted against measured: ``python -m benchmarks.gpu [--json]``.

A GPT-2 block is taken at several batch sizes. Its ops are timed (CUDA events) at every second of them, predicted at those
between from what was timed, and timed there too. Then one training step's peak is compared with the predicted one.
Prints "no GPU" (in JSON where that is asked for) and stops where there is none; ``--device cpu`` runs the same, smaller, on a
CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.api import Calibration, Cluster, LogicalGraph, PlanOptions, capture_hf_config, load_cluster, op_keys
from autosbp.cluster import Device, Level
from autosbp.costmodel.calibration import OpTime
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.op_bench import call_seconds, run_op
from autosbp.executor.measure import step_memory
from autosbp.executor.parameters import full_parameters
from autosbp.executor.training import Trainer, random_batch
from autosbp.search.planner import make_plan

LIMITS = {"median_op_error": 0.05, "memory_error": 0.05}
WIDTH, HEADS, SEQUENCE = {"cuda": 1024, "cpu": 128}, {"cuda": 16, "cpu": 4}, {"cuda": 1024, "cpu": 64}
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
SPREAD_BYTES = {"cuda": 256 * 2**20, "cpu": 32 * 2**20}
BOX_S, REPEATS = 0.05, 30


def one_device(device: Device) -> Cluster:
    """A cluster of one such device."""
    return Cluster(f"one {device.name}", (Level("g", 1, 0.0, 1e9),), device)


def block(kind: str) -> LogicalGraph:
    """The training graph of a GPT-2 of one layer, with a small vocabulary."""
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 8 * WIDTH[kind], "n_layer": 1,
        "n_embd": WIDTH[kind], "n_head": HEADS[kind], "n_positions": SEQUENCE[kind], "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }  # fmt: skip
    return capture_hf_config(config, SEQUENCE[kind])


def op_time(key: str, kind: str) -> OpTime:
    """Median seconds of forward and of backward."""
    forward, backward = run_op(key, kind, SPREAD_BYTES[kind])
    return OpTime(_median_s(forward, kind), _median_s(backward, kind))


def _median_s(call: Callable[[], object], kind: str) -> float:
    for _ in range(3):
        call()
    once = max(call_seconds(call, 1, kind), 1e-7)
    calls = max(1, min(200, round(BOX_S / REPEATS / once)))
    return statistics.median(call_seconds(call, calls, kind) / calls for _ in range(REPEATS))


def op_errors(graph: LogicalGraph, cluster: Cluster, kind: str) -> dict[str, Any]:
    """Ops at every second batch size, predicted from those at the others."""
    keys = {batch: op_keys(graph, cluster, PlanOptions(global_batch=batch)) for batch in BATCHES}
    known = {key: op_time(key, kind) for batch in BATCHES[::2] for key in keys[batch]}
    model = ComputeModel(cluster.device, Calibration(cluster, "gloo", "relative", (), known))
    rows = []
    for batch in BATCHES[1::2]:
        for key in keys[batch]:
            predicted = model.key_times_s(key)
            if key not in known and predicted is not None:
                measured = op_time(key, kind)
                seconds = measured.forward_s + measured.backward_s
                rows.append({"op": json.loads(key)["op"], "batch": batch, "measured_s": seconds,
                             "error": sum(predicted) / seconds - 1})  # fmt: skip
    errors = sorted(abs(row["error"]) for row in rows)
    total = sum(row["measured_s"] for row in rows)
    return {
        "shapes_timed": len(known),
        "shapes_predicted": len(rows),
        "median_op_error": statistics.median(errors),
        "p90_op_error": statistics.quantiles(errors, n=10, method="inclusive")[-1],
        "error_of_the_sum": abs(sum((1 + row["error"]) * row["measured_s"] for row in rows) / total - 1),
        "rows": rows,
    }


def memory_errors(graph: LogicalGraph, cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    """The peak of one training step at some batch sizes."""
    device, rows = torch.device(kind), []
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for batch_size in BATCHES[::4]:
            plan = make_plan(
                graph, cluster, None, PlanOptions(global_batch=batch_size, micro_batch=batch_size, stages=1)
            )
            trainer = Trainer(graph, plan.strategy, full_parameters(graph, 0), device=device)
            batch = {name: each.to(device) for name, each in random_batch(graph, batch_size, 1).items()}
            trainer.step(batch)
            measured, predicted = step_memory(trainer, batch), plan.document["memory_bytes_per_device"]
            rows.append({"batch": batch_size, "measured_bytes": measured.peak, "predicted_bytes": predicted,
                         "error": predicted / measured.peak - 1})  # fmt: skip
            del trainer, batch
        dist.destroy_process_group()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--preset", default="dgx-h200", metavar="CLUSTER", help="whose device's roofline is used")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    kind = arguments.device
    if kind == "cuda" and not torch.cuda.is_available():
        print(json.dumps({"benchmark": "gpu", "machine": None, "error": "no GPU"}) if arguments.json else "no GPU")
        return
    torch.set_num_threads(1)
    preset = load_cluster("local:1" if kind == "cpu" else f"{arguments.preset}:1").device
    cluster, graph = one_device(replace(preset, curves=None)), block(kind)
    ops, memory = op_errors(graph, cluster, kind), memory_errors(graph, cluster, kind)
    machine = torch.cuda.get_device_properties(0) if kind == "cuda" else None
    result = {
        "benchmark": "gpu",
        "limits": LIMITS,
        "machine": {
            "device": machine.name if machine else "CPU, one thread",
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        **ops,
        "memory": memory,
        "memory_error": max(abs(row["error"]) for row in memory),
    }
    print(
        f"{result['machine']['device']}: {ops['shapes_predicted']} op shapes predicted from {ops['shapes_timed']} others: "
        f"error median {ops['median_op_error']:.1%} p90 {ops['p90_op_error']:.1%}, of the sum {ops['error_of_the_sum']:.1%}"
    )
    for row in memory:
        print(
            f"  batch {row['batch']:>3}: peak {row['measured_bytes'] / 2**20:8.1f} MiB, "
            f"predicted {row['predicted_bytes'] / 2**20:8.1f}  {row['error']:+.1%}"
        )
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
