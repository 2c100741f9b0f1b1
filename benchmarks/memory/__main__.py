"""Predicted against measured memory of real ranks:

    python -m benchmarks.memory [--json] [--samples N] [MODEL...]

Four Gloo ranks train every model under every strategy. Measured are the most bytes of tensors alive at once
(``autosbp.executor.memory_trace``) and the most that autograd saves at once; the predictions come from
``autosbp.costmodel.memory``. Both refer to the rank with the most. On a machine with four GPUs, NCCL ranks do the same,
and the peak is ``torch.cuda.max_memory_allocated``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from autosbp.costmodel.memory import rank_memory
from autosbp.graph.ir import LogicalGraph
from autosbp.launch.local import run_ranks
from autosbp.plan.plan import Strategy
from benchmarks.memory._models import BATCH, BATCHES, MODELS, RANKS, graph_of, strategies_of

LIMIT = 0.05


def measure(cases: dict[str, tuple[LogicalGraph, dict[str, Strategy]]], *, cuda: bool = False) -> list[dict[str, Any]]:
    """One row per case: predicted and measured bytes, and their relative errors."""
    told = [
        {
            "model": name,
            "graph": graph.to_dict(),
            "strategies": [{"label": label, "strategy": each.to_dict()} for label, each in strategies.items()],
        }
        for name, (graph, strategies) in cases.items()
    ]
    with tempfile.TemporaryDirectory(prefix="autosbp-memory-") as name:
        folder = Path(name)
        request, result = folder / "request.json", folder / "result.json"
        request.write_text(json.dumps({"cases": told, "cuda": cuda}))
        outcome = run_ranks(
            "benchmarks.memory._ranks", [str(request), str(result)], RANKS, folder / "log", timeout_s=1200
        )
        if outcome.reason:
            raise SystemExit(f"{outcome.reason}\n{outcome.log_tail}")
        found = json.loads(result.read_text())
    rows = []
    for entry in found:
        graph, strategies = cases[entry["model"]]
        strategy = strategies[entry["label"]]
        bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
        # The dispatch mode that watches CPU ranks makes autograd accumulate gradients out of place.
        predicted = rank_memory(bound, strategy, device="cuda" if cuda else "cpu", sums_in_place=cuda)
        peak, saved = max(entry["peak"]), max(entry["saved"])
        rows.append({
            "model": entry["model"], "strategy": entry["label"], "device": "cuda" if cuda else "cpu",
            "peak": peak, "predicted_peak": predicted.peak, "peak_error": _error(predicted.peak, peak),
            "saved": saved, "predicted_saved": predicted.kept, "saved_error": _error(predicted.kept, saved),
        })  # fmt: skip
    return rows


def _error(predicted: int, measured: int) -> float:
    return (predicted - measured) / max(measured, 1)


def report(rows: list[dict[str, Any]]) -> str:
    """Text table of the rows."""
    lines = [
        f"{'model':10}{'strategy':40}{'peak':>12}{'predicted':>12}{'error':>9}{'saved':>12}{'predicted':>12}{'error':>9}"
    ]
    for row in rows:
        lines.append(
            f"{row['model']:10}{row['strategy']:40}{row['peak']:12,}{row['predicted_peak']:12,}{row['peak_error']:9.2%}"
            f"{row['saved']:12,}{row['predicted_saved']:12,}{row['saved_error']:9.2%}"
        )
    return "\n".join(lines) + "\n"


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors over all rows, and whether all are within the limit."""
    peaks, saved = ([abs(row[key]) for row in rows] for key in ("peak_error", "saved_error"))
    return {
        "cases": len(rows), "limit": LIMIT,
        "peak_error_median": statistics.median(peaks), "peak_error_worst": max(peaks),
        "saved_error_median": statistics.median(saved), "saved_error_worst": max(saved),
        "within_limit": max(*peaks, *saved) <= LIMIT,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.memory", description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    graphs = {name: graph_of(name) for name in options.models}
    cases = {
        name: (graph, strategies_of(graph, options.samples, BATCHES.get(name, BATCH))) for name, graph in graphs.items()
    }
    rows = measure(cases)
    sys.stderr.write(report(rows))
    if _num_gpus() >= RANKS:
        on_gpu = measure(cases, cuda=True)
        sys.stderr.write(report(on_gpu))
        rows += on_gpu
    else:
        sys.stderr.write("no GPU: peaks are compared on CPU alone\n")
    found = summary(rows)
    sys.stdout.write(json.dumps({**found, "rows": rows} if options.json else found) + "\n")
    return 0 if found["within_limit"] else 1


def _num_gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


if __name__ == "__main__":
    raise SystemExit(main())
