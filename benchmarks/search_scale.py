"""How long a plan takes from cold, and what is proved of it: ``python -m benchmarks.search_scale [CASE ...] [--rounds N]
[--replan] [--within SECONDS] [--json]``.

Every case is a process of its own, with bytecode at hand as an installed package has it, that imports, loads the graph, builds
and searches the whole space (stages, schedules, cuts, microbatch, storage, layouts), without torch; and another one that costs
the baselines beside it, as plans do that are not asked for other ones. Of several rounds, each of all cases, a case's median
by its seconds is shown. With ``--replan`` a case is planned for twice the batch, too, and with outer links of half the
bandwidth: each from cold, and after the plan of the case itself in the same process. With ``--within`` it is planned under
that time limit, too: how long that takes, how much slower the plan is, and what is proved of it. The memory is that of the
process with baselines and of those that help it, when together they have most (looked at every ``SAMPLE_S``), pages that they
share counted for each.
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
from autosbp.costmodel.faster import faster_link
graph = capture(sys.argv[1])
def planned(batch, bandwidth):
    cluster, _ = faster_link(load_cluster(sys.argv[2]), None, 0, float(bandwidth))
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
"""How often the memory is looked at."""
MOST_S = 120.0
"""A case that takes longer is ended."""
USUAL_S = 20.0
"""The time limit of a plan that none is asked for."""


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
"""Changes of a case: times its batch, and times the bandwidth of its outer links."""


def measure(
    case: Case,
    times: int = 1,
    bandwidth: float = 1.0,
    *,
    after: bool = False,
    within_s: float = USUAL_S,
    compared: bool = False,
) -> dict[str, Any]:
    """A row; of a case that does not end in ``MOST_S``, the limit alone, with ``ended`` false. With so many times the batch,
    and the bandwidth; if wished, ``after`` the case itself was planned, whose time counts to ``load_s``, or ``compared`` with
    baselines."""
    started = time.perf_counter()
    asked = [str(times * case.batch), str(bandwidth), str(within_s), "compared" if compared else "alone"]
    asked += [f"{case.batch},1.0"] if after else []
    program = [sys.executable, "-c", PROGRAM, case.model, case.cluster, *asked]
    most_bytes = 0
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        while True:
            try:
                # Looking takes time of the cores that are measured.
                out, errors = run.communicate(timeout=SAMPLE_S if compared else MOST_S)
                break
            except subprocess.TimeoutExpired:
                most_bytes = max(most_bytes, _resident_bytes(run.pid))
            if time.perf_counter() - started > MOST_S:
                run.kill()
                return {"seconds": MOST_S, "limit_s": case.limit_s, "ended": False}
    seconds = time.perf_counter() - started
    if run.returncode:
        sys.exit(errors)
    found: dict[str, Any] = json.loads(out)
    peak_bytes = max(found["peak_bytes"], most_bytes)
    return {"seconds": seconds, "limit_s": case.limit_s, **found, "peak_bytes": peak_bytes}


def _resident_bytes(pid: int) -> int:
    """Of a process and all that it made, as far as they are still there."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_resident_bytes(int(each)) for each in children)


def with_baselines(case: Case) -> dict[str, Any]:
    """Seconds of a plan that is compared with its baselines, theirs, and the memory that all of it takes; None, no baselines
    and no memory where it does not end."""
    found = measure(case, compared=True)
    if not found.get("ended", True):
        return {"with_baselines_s": None, "baselines": {}}
    return {"with_baselines_s": found["seconds"], **{name: found[name] for name in ("baselines", "peak_bytes")}}


def replanned(case: Case) -> dict[str, float | None]:
    """Seconds of plans of the changed case, from cold and after the case itself; None where they do not end."""
    return {
        f"{change}_{kind}_s": measure(case, *changed, after=kind == "warm").get("plan_s")
        for change, changed in REPLANS.items()
        for kind in ("cold", "warm")
    }


def hurried(case: Case, within_s: float | None) -> dict[str, float | None]:
    """Of a plan under this time limit its seconds, in all, and what it is and proves; nothing where none is asked for."""
    if within_s is None:
        return {}
    found = measure(case, within_s=within_s)
    kept = {"within_seconds": found["seconds"], "within_step_time_s": found.get("step_time_s")}
    return {"within_s": within_s, **kept, "within_gap": found.get("gap")}


def median(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row in the middle by seconds, the slower of two, with the seconds of all."""
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
        parser.error(f"{', '.join(sorted(unknown))}: one of {', '.join(CASES)} is expected")
    if arguments.rounds < 1:
        parser.error("--rounds: at least 1 is expected")
    if arguments.within is not None and not 0 < arguments.within < MOST_S:
        parser.error(f"--within {arguments.within:g}: more than 0 and less than {MOST_S:g} seconds is expected")
    names = arguments.cases or list(CASES)
    # Where the environment forbids to write bytecode, each process would compile what was changed since the installation.
    compileall.compile_dir(str(Path(autosbp.__file__).parent), quiet=2)
    rounds: list[dict[str, dict[str, Any]]] = []
    for at in range(arguments.rounds):
        rounds.append({})
        for name in names:
            case = CASES[name]
            rounds[-1][name] = measure(case) | with_baselines(case) | hurried(case, arguments.within)
            rounds[-1][name] |= replanned(case) if arguments.replan else {}
            if at + 1 == arguments.rounds:
                show(name, median([each[name] for each in rounds]))
    rows = {name: median([each[name] for each in rounds]) for name in names}
    if arguments.json:
        print(json.dumps({"benchmark": "search_scale", "rows": rows}))


def show(name: str, row: Mapping[str, Any]) -> None:
    """One line."""
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
