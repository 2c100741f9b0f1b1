"""How long a plan takes from cold, and what is proved of it: ``python -m benchmarks.search_scale [CASE ...] [--json]``.

Every case is a process of its own that imports, loads the graph, searches the whole space (stages, schedules, cuts,
microbatch, storage, layouts) and its baselines, without torch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PROGRAM = """
import json, resource, sys, time
started = time.perf_counter()
from autosbp.api import PlanOptions, capture, load_cluster, make_plan
graph = capture(sys.argv[1])
loaded = time.perf_counter()
plan = make_plan(graph, load_cluster(sys.argv[2]), None, PlanOptions(global_batch=int(sys.argv[3])))
document, strategy = plan.document, plan.strategy
assert "torch" not in sys.modules
print(json.dumps({
    "load_s": loaded - started, "plan_s": time.perf_counter() - loaded, "step_time_s": document["step_time_s"],
    "gap": document["gap"], "stages": strategy.num_stages,
    "schedule": strategy.pipeline.schedule if strategy.pipeline else None, "micro_batch": strategy.micro_batch,
    "gather": strategy.gather, "memory_bytes_per_device": document["memory_bytes_per_device"],
    "baselines": {name: each.get("step_time_s") for name, each in document["baselines"].items()},
    "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
}))
"""


@dataclass(frozen=True)
class Case:
    """``limit_s`` is what is aimed at, for all."""

    model: str
    cluster: str
    batch: int
    limit_s: float


CASES: Mapping[str, Case] = {
    "gpt2-1.5b@2x8": Case("zoo:gpt2-1.5b", "dgx-a100-40g:2", 512, 0.5),
    "llama-70b@2x8": Case("zoo:llama-70b", "dgx-a100-80g:2", 64, 1.0),
    "llama-70b@128x8": Case("zoo:llama-70b", "dgx-a100-80g:128", 1024, 2.0),
    "gpt3-175b@128x8": Case("zoo:gpt3-175b", "dgx-a100-80g:128", 1536, 2.0),
    "moe@4x8": Case("zoo:moe", "dgx-a100-40g:4", 256, 1.0),
    "vgg13@4x8": Case("zoo:vgg13", "dgx-a100-40g:4", 1024, 1.0),
    "resnet50@4x8": Case("zoo:resnet50", "dgx-a100-40g:4", 1024, 1.0),
    "wide-deep@4x8": Case("zoo:wide-deep", "dgx-a100-40g:4", 4096, 1.0),
}


def measure(case: Case) -> dict[str, Any]:
    started = time.perf_counter()
    arguments = [case.model, case.cluster, str(case.batch)]
    run = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(run.stderr)
    found: dict[str, Any] = json.loads(run.stdout)
    return {"seconds": time.perf_counter() - started, "limit_s": case.limit_s, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"by default {' '.join(CASES)}")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: one of {', '.join(CASES)} is expected")
    rows = {}
    for name in arguments.cases or CASES:
        row = rows[name] = measure(CASES[name])
        best = min((seconds for seconds in row["baselines"].values() if seconds is not None), default=None)
        print(
            f"{name:<18} {row['seconds']:6.1f} s (aim {row['limit_s']:g} s, load {row['load_s']:.1f}) gap {row['gap']:.1%}  "
            f"step {row['step_time_s']:.4g} s, best baseline {'none' if best is None else f'{best:.4g} s'}; "
            f"{row['stages']} stages {row['schedule'] or ''} microbatch {row['micro_batch']}; "
            f"{row['peak_bytes'] / 2**30:.2f} GiB",
            flush=True,
        )
    if arguments.json:
        print(json.dumps({"benchmark": "search_scale", "rows": rows}))


if __name__ == "__main__":
    main()
