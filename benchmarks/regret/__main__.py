"""Plans against constrained strategies: ``python -m benchmarks.regret [CASE ...] [--seconds S] [OPTIONS]``.

Other options: ``--before FILE``, ``--json``. Plans twelve models of the zoo on seven clusters, and some more cases,
without constraints. Each plan is compared with strategies that constraints can express (stages x data x tensor x storage
x recomputation x microbatch size), costed by the same cost model, for ``--seconds`` per case. The regret of a plan is its
relative slowdown against the fastest of these. ``--before`` is a file of JSON lines (``case``, ``strategy``) with the
strategies that another release planned for the same cases; they are costed with the current cost model, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autosbp.api import LogicalGraph, PlanOptions, capture, load_cluster, make_plan, predict_costs
from autosbp.errors import InfeasibleError
from autosbp.plan.plan import Strategy
from benchmarks.regret._cases import Case, cases
from benchmarks.regret._rivals import constrained_strategies

SECONDS = 60.0
AIM = 0.005
"""Maximum acceptable regret."""


def measure(case: Case, graph: LogicalGraph, limit_s: float, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Row of one case."""
    cluster, options = load_cluster(case.cluster), PlanOptions(
        global_batch=case.batch, memory_limit_bytes=case.limit_bytes
    )  # fmt: skip
    began = time.monotonic()
    try:
        plan = make_plan(graph, cluster, None, options)
    except InfeasibleError as error:
        return {"case": case.name, "infeasible": str(error)}
    row: dict[str, Any] = {
        "case": case.name, "plan_s": time.monotonic() - began, "step_time_s": plan.document["step_time_s"],
        "lower_bound_s": plan.document["lower_bound_s"], "gap": plan.document["gap"],
        "stages": plan.strategy.num_stages, "ended_early": plan.document.get("ended_early", False),
        "baselines": {name: entry["step_time_s"] for name, entry in plan.document["baselines"].items()},
    }  # fmt: skip
    if before is not None:
        step_s = predict_costs(graph, Strategy.from_dict(before["strategy"]), cluster).step_time_s
        row["before"] = {"step_time_s": step_s, "plan_s": before["seconds"]}
    found, tried = constrained_strategies(case, graph, limit_s)
    row |= {"tried": tried, "fit": len(found)}
    if found:
        best = min(found, key=lambda rival: rival.step_time_s)
        row |= {"best_rival": best.name, "best_rival_s": best.step_time_s}
        row["regret"] = max(0.0, row["step_time_s"] / best.step_time_s - 1)
        if before is not None:
            quickest = min(best.step_time_s, row["step_time_s"])
            row["before"]["regret"] = max(0.0, row["before"]["step_time_s"] / quickest - 1)
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regret", description=__doc__.partition("\n")[0])
    parser.add_argument("names", metavar="CASE", nargs="*", help="parts of the names of cases; all of them")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for the strategies beside one plan")
    parser.add_argument("--before", type=Path, help="lines of another release's plans")
    parser.add_argument("--json", action="store_true", help="end in one line of JSON")
    asked = parser.parse_args(arguments)
    earlier = {}
    for line in asked.before.read_text().splitlines() if asked.before else ():
        entry = json.loads(line)
        earlier[entry["case"]] = entry
    rows, graphs = [], dict[tuple[str, str], LogicalGraph]()
    for case in cases():
        if asked.names and not any(name in case.name for name in asked.names):
            continue
        key = case.model, case.precision
        if key not in graphs:
            graphs[key] = _graph(*key)
        row = measure(case, graphs[key], asked.seconds, earlier.get(case.name))
        rows.append(row)
        print(_line(row), file=sys.stderr, flush=True)
    regrets = [row["regret"] for row in rows if "regret" in row]
    summary = {
        "cases": len(rows), "median_regret": statistics.median(regrets), "worst_regret": max(regrets),
        "above_aim": sum(regret > AIM for regret in regrets),
    }  # fmt: skip
    print(json.dumps({"benchmark": "regret", "summary": summary, "rows": rows}) if asked.json else summary)
    return 0


def _graph(model: str, precision: str) -> LogicalGraph:
    graph = capture(f"zoo:{model}")
    if precision == "fp32":
        return graph
    from autosbp.graph.dtype_cast import cast_floats

    return cast_floats(graph, "float32", "bfloat16")


def _line(row: Mapping[str, Any]) -> str:
    if "infeasible" in row:
        return f"{row['case']:42} infeasible"
    gap = "   -  " if row["gap"] is None else f"{100 * row['gap']:5.1f}%"
    text = f"{row['case']:42} {row['plan_s']:5.1f} s  step {row['step_time_s']:.5g}  gap {gap}  stages {row['stages']}"
    if "regret" in row:
        text += f"  regret {100 * row['regret']:.2f}% of {row['tried']} ({row['best_rival']})"
    if "before" in row:
        text += f"  before {row['before']['step_time_s']:.5g}"
    return text


if __name__ == "__main__":
    sys.exit(main())
