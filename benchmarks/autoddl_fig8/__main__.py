"""AutoDDL's Figure 8: ``python -m benchmarks.autoddl_fig8 [--json] [--chart FILE.svg]``.

Runs all searchers on a 4-layer MLP on 128 and 4,096 single-device nodes and shows cost relative to the optimum over
time relative to exhaustive search. Heuristics run once per seed and evaluation budget, all from the same random
assignment.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from autosbp.search import SEARCHERS, SearchOptions, SearchProblem
from benchmarks.autoddl_fig8._chart import chart
from benchmarks.autoddl_fig8._curves import HEURISTICS, PROVERS, budgets, one_sweep_s, points, timed
from benchmarks.autoddl_fig8._problem import NODES, SAMPLES_PER_NODE, WIDTHS, fig8_problem, readings

TIMES = {"exhaustive": 3}
MANY_TIMES = 50
NEAR = 1.01


def run(num_nodes: int, num_seeds: int) -> dict[str, Any]:
    """Run every searcher for one number of nodes."""
    chain = fig8_problem(num_nodes)
    proved = {name: _prove(chain.problem, name) for name in PROVERS}
    best = SEARCHERS["exact"](chain.problem, SearchOptions())
    whole_s = proved["exhaustive"]["search_s"]
    curves = {
        name: {"points": points(chain.problem, name, range(num_seeds), budgets(chain.problem), whole_s)}
        for name in HEURISTICS
    }
    return {
        "optimum_s": best.cost_s,
        "gap": best.gap,
        "optimum_p0_p1_p2": [
            (2 ** counts[value]).tolist() for counts, value in zip(chain.values, best.assignment, strict=True)
        ],
        "widths": WIDTHS,
        "batch": SAMPLES_PER_NODE * num_nodes,
        "assignments": chain.problem.num_assignments,
        "exhaustive_finished": True,
        "one_sweep_of_coordinate_descent_s": one_sweep_s(chain.problem, MANY_TIMES),
        "searchers": {**proved, **curves},
        "optimum_s_by_reading": readings(num_nodes),
    }


def _prove(problem: SearchProblem, name: str) -> dict[str, Any]:
    result, seconds = timed(lambda: SEARCHERS[name](problem, SearchOptions()), TIMES.get(name, MANY_TIMES))
    work = result.info.get("operations", result.evaluations)
    return {
        "cost_s": result.cost_s,
        "gap": result.gap,
        "search_s": seconds,
        "evaluations": work,
        "ran": result.searcher,
    }


def show(nodes: str, result: dict[str, Any]) -> None:
    """Print a row per searcher: the cost after 1e-4 of the assignments, and when it is within 1 % of the optimum."""
    optimum, searchers = result["optimum_s"], result["searchers"]
    whole_s, whole = searchers["exhaustive"]["search_s"], result["assignments"]
    print(f"{nodes} nodes: {whole:,} assignments, optimum {1e3 * optimum:.4f} ms, (p0, p1, p2) = ", end="")
    print(", ".join(str(tuple(each)) for each in result["optimum_p0_p1_p2"]))
    for name, found in searchers.items():
        if "points" not in found:
            told = "" if found["ran"] == name else f" (ran {found['ran']})"
            print(
                f"  {name:<20} {found['cost_s'] / optimum:.6f} x the optimum, proved, in {1e3 * found['search_s']:8.3f} ms = "
                f"{found['search_s'] / whole_s:.1e} of exhaustive{told}"
            )
            continue
        early = max((each for each in found["points"] if each["evaluations"] <= 1e-4 * whole), key=_work)
        low, middle, high = (cost / optimum for cost in early["cost_s"])
        near = next((each for each in found["points"] if each["cost_s"][1] <= NEAR * optimum), None)
        reached = (
            "not reached"
            if near is None
            else f"at {near['evaluations'] / whole:.0e} of the assignments, {near['search_s'] / whole_s:.0e} of the time"
        )
        print(f"  {name:<20} {middle:.4f} x ({low:.4f} to {high:.4f}) with 1e-4 of the assignments; 1 %: {reached}")
    sweep = result["one_sweep_of_coordinate_descent_s"]
    print(
        f"  one sweep of coordinate descent takes {1e3 * sweep:.3f} ms, exact {1e3 * searchers['exact']['search_s']:.3f} ms"
    )


def _work(point: dict[str, Any]) -> int:
    return int(point["evaluations"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=10, metavar="N")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the JSON")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="draw the curves")
    arguments = parser.parse_args()
    results = {}
    for num_nodes in NODES:
        results[str(num_nodes)] = run(num_nodes, arguments.seeds)
        show(str(num_nodes), results[str(num_nodes)])
        sys.stdout.flush()
    line = json.dumps(results)
    if arguments.output is not None:
        arguments.output.write_text(line + "\n")
    if arguments.chart is not None:
        arguments.chart.write_text(chart(results))
    if arguments.json:
        print(line)


if __name__ == "__main__":
    main()
