"""Predictions for one GPU against measurements: ``python -m benchmarks.gpu [PART...] [--json] [-o FILE]``.

ops: times ops of a GPT-2 (CUDA events) at every second of some batch sizes, predicts the sizes between from these
times, and times those too.

steps: trains models on the GPU and compares the time and peak memory (``max_memory_allocated``) of a step with
predictions from the data sheet alone, and from timed ops.

ranks: four NCCL ranks share the GPU as if they were nodes; compares their collectives with the charged ones, losses
with one device's, and peak memory with the prediction.

Without a GPU it prints "no GPU" (as JSON with ``--json``) and stops; ``--device cpu`` runs a smaller version on a CPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.errors import AutosbpError
from benchmarks.gpu._models import model, one_device
from benchmarks.gpu._ops import op_errors
from benchmarks.gpu._steps import BOX_S, CASES, Case, step_row
from benchmarks.gpu._strategies import rank_rows

LIMITS = {"median_op_error": 0.05, "memory_error": 0.05}
RANKS_S = 85.0


def machine(kind: str) -> dict[str, Any]:
    """Description of the device and its software versions."""
    if kind == "cpu":
        return {"device": "CPU, one thread", "torch": torch.__version__}
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    found = torch.cuda.get_device_properties(0)
    return {
        "device": found.name, "memory_bytes": found.total_memory, "driver": driver, "torch": torch.__version__,
        "cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version())), "python": platform.python_version(),
    }  # fmt: skip


def ops(kind: str, preset: str) -> dict[str, Any]:
    """Errors for ops of a GPT-2 at shapes that were not timed."""
    graph = model("gpt2" if kind == "cuda" else "gpt2-demo")
    found = op_errors(graph, one_device(kind, preset, curves=False), kind)
    say(
        f"{found['shapes_predicted']} op shapes predicted from {found['shapes_timed']} others: error median "
        f"{found['median_op_error']:.1%} p90 {found['p90_op_error']:.1%}, of the sum {found['error_of_the_sum']:.1%}"
    )
    return found


def steps(kind: str, preset: str) -> dict[str, Any]:
    """Errors for training steps on the device."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        _steps_of(CASES[kind], kind, preset, rows)
        dist.destroy_process_group()
    done = [row for row in rows if "error" not in row]
    if not done:
        return {"rows": rows}
    return {
        "median_step_error": statistics.median(abs(row["timed_ops_error"]) for row in done),
        "median_step_error_of_data_sheet": statistics.median(abs(row["data_sheet_error"]) for row in done),
        "memory_error": max(abs(row["memory_error"]) for row in done),
        "rows": rows,
    }


def _steps_of(cases: Sequence[Case], kind: str, preset: str, rows: list[dict[str, Any]]) -> None:
    began_s = time.monotonic()
    for case in cases:
        if time.monotonic() - began_s > BOX_S:
            rows.append({"case": case.label, "error": f"left out: {BOX_S:g} s were over"})
            continue
        try:
            row = step_row(case, kind, preset)
        except (AutosbpError, RuntimeError, ValueError) as error:  # the next case may succeed
            rows.append({"case": case.label, "error": f"{type(error).__name__}: {error}"[:2000]})
            say(f"  {case.label}: {rows[-1]['error']}")
            continue
        rows.append(row)
        say(
            f"  {row['case']:36} {row['step_s'] * 1e3:8.1f} ms (host {row['host_s'] * 1e3:.1f}), "
            f"sheet {row['data_sheet_error']:+6.1%} timed "
            f"{row['timed_ops_error']:+6.1%}; {row['peak_bytes'] / 2**20:8.0f} MiB {row['memory_error']:+.1%}"
        )


def ranks(kind: str, _: str) -> dict[str, Any]:
    """Results for ranks that share the device."""
    rows = rank_rows(kind, RANKS_S)
    for row in rows:
        if "error" in row:
            say(f"  {row['error']}\n{row['log']}")
            continue
        say(
            f"  {row['model']:16}{row['strategy']:36} {row['collectives']:4} collectives "
            f"{'as charged' if row['collectives_match'] else 'NOT AS CHARGED'}, loss {row['loss_difference']:.1e}, "
            f"memory {row['memory_error']:+.1%}"
        )
    return {"rows": rows}


PARTS: dict[str, Callable[[str, str], dict[str, Any]]] = {"ops": ops, "steps": steps, "ranks": ranks}


def say(text: str) -> None:
    """Print a line of the report."""
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all by default")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--preset", default="dgx-h200", metavar="CLUSTER", help="whose device's data sheet is used")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    kind = arguments.device
    for part in arguments.parts:
        if part not in PARTS:
            parser.error(f"part {part!r}: expected some of {', '.join(PARTS)}")
    if kind == "cuda" and not torch.cuda.is_available():
        print(json.dumps({"benchmark": "gpu", "machine": None, "error": "no GPU"}) if arguments.json else "no GPU")
        return
    torch.set_num_threads(1)
    result: dict[str, Any] = {"benchmark": "gpu", "limits": LIMITS, "machine": machine(kind)}
    say(", ".join(f"{name} {value}" for name, value in result["machine"].items()))
    for part in arguments.parts or PARTS:
        result[part] = PARTS[part](kind, arguments.preset)
        if arguments.output is not None:  # keep the results if the next part does not finish
            arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
