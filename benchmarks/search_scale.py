"""Planning time from a cold start, and the proved gap: ``python -m benchmarks.search_scale [CASE ...] [OPTIONS]``.

Options: ``--rounds N``, ``--replan``, ``--within SECONDS``, ``--json``. Every case runs in its own process, with
compiled bytecode as in an installed package. The process imports, loads the graph, builds and searches the whole space
(stages, schedules, cuts, microbatch, storage, layouts), without torch. A second process also costs the default
baselines. Each round runs all cases; the round with a case's median seconds is shown. With ``--replan``, a case is also
planned for twice the batch and with half the bandwidth of the outer links: each from a cold start, and after the plan
of the original case in the same process. With ``--within``, it is also planned under that time limit: time taken,
slowdown of the plan, and gap. Memory is the maximum total of the process with baselines and its children, sampled every
``SAMPLE_S``; shared pages count for each process.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import autosbp

PROGRAM = """
import json, resource, sys, time
started = time.perf_counter()
from autosbp.api import PlanOptions, capture, load_cluster, make_plan
from autosbp.search.plan_options import DEFAULT_BASELINES
from autosbp.costmodel.hardware_scaling import scale_link_bandwidth
graph = capture(sys.argv[1])
def planned(batch, bandwidth):
    cluster, _ = scale_link_bandwidth(load_cluster(sys.argv[2]), None, 0, float(bandwidth))
    compared = DEFAULT_BASELINES if sys.argv[6] == "compared" else ()
    options = PlanOptions(global_batch=int(batch), time_limit_s=float(sys.argv[5]), baselines=compared)
    return make_plan(graph, cluster, None, options)
for before in sys.argv[7:]:
    planned(*before.split(","))
loaded = time.perf_counter()
plan = planned(*sys.argv[3:5])
document, strategy = plan.document, plan.strategy
assert "torch" not in sys.modules
print(json.dumps({
    "load_s": loaded - started, "plan_s": time.perf_counter() - loaded, "step_time_s": document["step_time_s"],
    "gap": document["gap"], "stages": strategy.num_stages,
    "schedule": strategy.pipeline.schedule.name if strategy.pipeline else None, "micro_batch": strategy.micro_batch,
    "gather": strategy.gather, "memory_bytes_per_device": document["memory_bytes_per_device"],
    "baselines": {name: each.get("step_time_s") for name, each in document["baselines"].items()},
    "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
}))
"""


SAMPLE_S = 0.02
"""Seconds between memory samples."""
MAX_CASE_S = 120.0
"""Seconds after which a case is stopped."""
DEFAULT_TIME_LIMIT_S = 20.0
"""Default time limit of a plan, in seconds."""


@dataclass(frozen=True)
class Case:
    """A case; ``limit_s`` is the target for its planning time."""

    model: str
    cluster: str
    batch: int
    limit_s: float


CASES: Mapping[str, Case] = {
    "gpt2-1.5b@2x8": Case("zoo:gpt2-1.5b", "dgx-a100-40g:2", 512, 0.5),
    "llama-70b@2x8": Case("zoo:llama-70b", "dgx-a100-80g:2", 64, 1.0),
    "llama-70b@128x8": Case("zoo:llama-70b", "dgx-a100-80g:128", 1024, 2.0),
    "gpt3-175b@128x8": Case("zoo:gpt3-175b", "dgx-a100-80g:128", 1536, 2.0),
    "gpt-1t@2048x8": Case("zoo:gpt-1t", "dgx-a100-80g:2048", 4096, 5.0),
    "bert-large@4x8": Case("zoo:bert-large", "dgx-a100-40g:4", 1024, 1.0),
    "t5-large@4x8": Case("zoo:t5-large", "dgx-a100-40g:4", 512, 1.0),
    "vit-large@4x8": Case("zoo:vit-large", "dgx-a100-40g:4", 1024, 1.0),
    "moe@4x8": Case("zoo:moe", "dgx-a100-40g:4", 256, 1.0),
    "vgg13@4x8": Case("zoo:vgg13", "dgx-a100-40g:4", 1024, 1.0),
    "resnet50@4x8": Case("zoo:resnet50", "dgx-a100-40g:4", 1024, 1.0),
    "wide-deep@4x8": Case("zoo:wide-deep", "dgx-a100-40g:4", 4096, 1.0),
}


REPLANS: Mapping[str, tuple[int, float]] = {"batch": (2, 1.0), "links": (1, 0.5)}
"""Changes of a case: factor on its batch, and on the bandwidth of its outer links."""


def measure(
    case: Case,
    times: int = 1,
    bandwidth: float = 1.0,
    *,
    after: bool = False,
    within_s: float = DEFAULT_TIME_LIMIT_S,
    compared: bool = False,
) -> dict[str, Any]:
    """Run a case in a new process and return its row; if it exceeds ``MAX_CASE_S``, only the limit with ``ended`` False.

    Args:
        times: factor on the batch.
        bandwidth: factor on the bandwidth of the outer links.
        after: plan the case itself first; that time counts to ``load_s``.
        within_s: time limit of the plan.
        compared: also cost the baselines.
    """
    started = time.perf_counter()
    asked = [str(times * case.batch), str(bandwidth), str(within_s), "compared" if compared else "alone"]
    asked += [f"{case.batch},1.0"] if after else []
    program = [sys.executable, "-c", PROGRAM, case.model, case.cluster, *asked]
    most_bytes = 0
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        while True:
            try:
                # Sampling takes time from the measured cores.
                out, errors = run.communicate(timeout=SAMPLE_S if compared else MAX_CASE_S)
                break
            except subprocess.TimeoutExpired:
                most_bytes = max(most_bytes, _resident_bytes(run.pid))
            if time.perf_counter() - started > MAX_CASE_S:
                run.kill()
                return {"seconds": MAX_CASE_S, "limit_s": case.limit_s, "ended": False}
    seconds = time.perf_counter() - started
    if run.returncode:
        sys.exit(errors)
    found: dict[str, Any] = json.loads(out)
    peak_bytes = max(found["peak_bytes"], most_bytes)
    return {"seconds": seconds, "limit_s": case.limit_s, **found, "peak_bytes": peak_bytes}


def _resident_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants that still exist."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_resident_bytes(int(each)) for each in children)


def with_baselines(case: Case) -> dict[str, Any]:
    """Seconds and peak memory of a plan with baselines, and the baselines' step times.

    If it does not end, seconds are None, and there are no baselines and no memory.
    """
    found = measure(case, compared=True)
    if not found.get("ended", True):
        return {"with_baselines_s": None, "baselines": {}}
    return {"with_baselines_s": found["seconds"], **{name: found[name] for name in ("baselines", "peak_bytes")}}


def replanned(case: Case) -> dict[str, float | None]:
    """Seconds to plan the changed case from a cold start and after the case itself; None if that does not end."""
    return {
        f"{change}_{kind}_s": measure(case, *changed, after=kind == "warm").get("plan_s")
        for change, changed in REPLANS.items()
        for kind in ("cold", "warm")
    }


def plan_within(case: Case, within_s: float | None) -> dict[str, float | None]:
    """Seconds, step time and gap of a plan under this time limit; empty without a limit."""
    if within_s is None:
        return {}
    found = measure(case, within_s=within_s)
    kept = {"within_seconds": found["seconds"], "within_step_time_s": found.get("step_time_s")}
    return {"within_s": within_s, **kept, "within_gap": found.get("gap")}


def median(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row with the median seconds (the slower one of two), with the seconds of all rounds."""
    ranked = sorted(rows, key=lambda row: row["seconds"])
    return {**ranked[len(ranked) // 2], "rounds_s": [row["seconds"] for row in rows]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"by default {' '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=1, help="how often all cases are measured")
    parser.add_argument("--replan", action="store_true", help="also plan changed cases, from cold and after the case")
    parser.add_argument("--within", type=float, metavar="SECONDS", help="also plan under this time limit")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: expected one of {', '.join(CASES)}")
    if arguments.rounds < 1:
        parser.error("--rounds: expected at least 1")
    if arguments.within is not None and not 0 < arguments.within < MAX_CASE_S:
        parser.error(f"--within {arguments.within:g}: expected more than 0 and less than {MAX_CASE_S:g} seconds")
    names = arguments.cases or list(CASES)
    # If bytecode cannot be written, each process would compile what changed since the installation.
    compileall.compile_dir(str(Path(autosbp.__file__).parent), quiet=2)
    rounds: list[dict[str, dict[str, Any]]] = []
    for at in range(arguments.rounds):
        rounds.append({})
        for name in names:
            case = CASES[name]
            rounds[-1][name] = measure(case) | with_baselines(case) | plan_within(case, arguments.within)
            rounds[-1][name] |= replanned(case) if arguments.replan else {}
            if at + 1 == arguments.rounds:
                show(name, median([each[name] for each in rounds]))
    rows = {name: median([each[name] for each in rounds]) for name in names}
    if arguments.json:
        print(json.dumps({"benchmark": "search_scale", "rows": rows}))


def show(name: str, row: Mapping[str, Any]) -> None:
    """Print a row."""
    if not row.get("ended", True):
        print(f"{name:<18} over {row['seconds']:.0f} s (aim {row['limit_s']:g} s)", flush=True)
        return
    gap = "no bound" if row["gap"] is None else f"gap {row['gap']:.1%}"
    whole = "not to an end" if row["with_baselines_s"] is None else f"{row['with_baselines_s']:.2f}"
    known = [seconds for seconds in row["baselines"].values() if seconds is not None]
    best = f"best baseline {min(known):.4g} s" if known else "no baseline"
    print(
        f"{name:<18} {row['seconds']:6.2f} s (aim {row['limit_s']:g} s, load {row['load_s']:.2f}, "
        f"with baselines {whole}) {gap}  step {row['step_time_s']:.4g} s, {best}; "
        f"{row['stages']} stages {row['schedule'] or ''} microbatch {row['micro_batch']}; "
        f"{row['peak_bytes'] / 2**30:.2f} GiB",
        flush=True,
    )
    if row.get("within_gap") is not None:
        slower = row["within_step_time_s"] / row["step_time_s"] - 1
        print(
            f"{'':<18} under a limit of {row['within_s']:g} s: {row['within_seconds']:.1f} s, "
            f"step {slower:+.1%}, gap {row['within_gap']:.1%}",
            flush=True,
        )
    for change in REPLANS:
        cold, warm = row.get(f"{change}_cold_s"), row.get(f"{change}_warm_s")
        if cold and warm:
            print(f"{'':<18} planned for another {change}: {warm:.1f} s, from cold {cold:.1f} s", flush=True)


if __name__ == "__main__":
    main()
