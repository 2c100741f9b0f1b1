"""Growth of search time: ``python -m benchmarks.search_growth [--json] [-o FILE.json] [--chart FILE.svg]``.

GPT-3's block on DGX A100s: 12 to 1,536 layers on 64 devices, and 96 layers on 8 to 131,072 devices. Times the search
problem of one stage, one microbatch and one view of the mesh (folding the graph, building, solving with proof), and
with --plans complete plans of some sizes (those that fit in memory, with 96 layers or on 1,024 devices). All times are
CPU seconds. Graphs are made from the zoo's, so that capture is not timed. Exponents are slopes of log seconds over log
size.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search_growth._chart import chart
from benchmarks.search_growth._measure import BATCH, PLAN_BATCH, Size, exponent, one_problem, whole_plan
from benchmarks.search_growth._models import ZOO_NAME

LAYERS = (12, 24, 48, 96, 192, 384, 768, 1536)
DEVICES = (8, 64, 1024, 8192, 131_072)
PLANNED_LAYERS = (12, 96, 384)
PLANNED_DEVICES = (64, 1024, 8192)
FIXED = Size(layers=96, devices=64)
PLANNED = Size(layers=96, devices=1024)
FIELDS = ("fold_s", "build_s", "exact_s", "all_s", "distinct_products", "plan_s")
TIMES = 3
LONG_S = 1.0


def run(layers: Sequence[int], devices: Sequence[int], *, plans: bool) -> dict[str, Any]:
    """Measure both series, after an unmeasured run of the smallest size that absorbs imports and first calls."""
    one_problem(Size(min(layers), min(devices)))
    result: dict[str, Any] = {
        "benchmark": "search_growth",
        "machine": machine(),
        "model": f"{ZOO_NAME} with other numbers of layers",
        "batch": BATCH,
        "layers": [_shown(_quickest(Size(count, FIXED.devices))) for count in layers],
        "devices": [_shown(_quickest(Size(FIXED.layers, count))) for count in devices],
    }
    if plans:
        result["plan_batch"] = PLAN_BATCH
        result["plans_layers"] = [_shown(whole_plan(Size(count, PLANNED.devices))) for count in PLANNED_LAYERS]
        result["plans_devices"] = [_shown(whole_plan(Size(PLANNED.layers, count))) for count in PLANNED_DEVICES]
    result["exponents"] = {
        by: {
            field: exponent(rows, by, field)
            for rows in (result[by], result.get(f"plans_{by}", ()))
            for field in FIELDS
            if rows and field in rows[0]
        }
        for by in ("layers", "devices")
    }
    return result


def _quickest(size: Size) -> dict[str, Any]:
    """The fastest of several runs (of two, if they are long).

    Other work on the machine adds varying time, and the first run of a size may find cold caches.
    """
    rows = [one_problem(size), one_problem(size)]
    while len(rows) < TIMES and rows[-1]["all_s"] < LONG_S:
        rows.append(one_problem(size))
    return min(rows, key=lambda row: float(row["all_s"]))


def machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = named[0] if named else model
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    told = (f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value:,}" for name, value in row.items())
    print(", ".join(told), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("--plans", action="store_true", help="time whole plans, too: minutes")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the JSON")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="draw the growth")
    arguments = parser.parse_args()
    result = run(LAYERS, DEVICES, plans=arguments.plans)
    for by, found in result["exponents"].items():
        print(f"growth with {by}: " + ", ".join(f"{field} {slope:+.2f}" for field, slope in found.items()))
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(result) + "\n")
    if arguments.chart is not None:
        arguments.chart.write_text(chart(result))
    if arguments.json:
        sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
