"""Plans that must not get slower, nor their bounds lower (``tests/golden/rows.json``), and how to record them.

``python -m benchmarks.golden [--write] [--accept] [--json]`` plans every row anew; ``--write`` records improvements,
``--accept`` also regressions. A row's ``before_s`` is the simulated step time planned by the last release without this
file, which minimized a sum without overlap; rows of ``piz-daint``, whose links had their peak then, have none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan

PATH = Path(__file__).parents[1] / "tests" / "golden" / "rows.json"
ROUNDING = 1e-9


def read_rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(PATH.read_text())["rows"]
    return found


def name_of(row: Mapping[str, Any]) -> str:
    limited = f"-{row['memory_limit_bytes'] / 1e9:g}GB" if row["memory_limit_bytes"] else ""
    return f"{row['model']}-{row['cluster']}-{row['batch']}-{row['precision']}{limited}"


def graph_of(row: Mapping[str, Any]) -> LogicalGraph:
    graph = capture(f"zoo:{row['model']}")
    if row["precision"] == "float32":
        return graph
    from autosbp.graph.dtype_cast import cast_floats

    return cast_floats(graph, "float32", row["precision"])


def plan_of(row: Mapping[str, Any]) -> Plan:
    """Plan a row, with a time limit that does not bind."""
    options = PlanOptions(global_batch=row["batch"], memory_limit_bytes=row["memory_limit_bytes"], time_limit_s=300.0)
    return make_plan(graph_of(row), load_cluster(row["cluster"]), None, options)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="record what got better")
    parser.add_argument("--accept", action="store_true", help="record what got worse, too")
    parser.add_argument("--json", action="store_true", help="end in one line of JSON")
    asked = parser.parse_args(arguments)
    rows, num_worse = read_rows(), 0
    for row in rows:
        document = plan_of(row).document
        step_s, bound_s = document["step_time_s"], document["lower_bound_s"]
        worse = step_s > row["step_time_s"] * (1 + ROUNDING) or bound_s < row["lower_bound_s"] * (1 - ROUNDING)
        num_worse += worse
        before = f"step {row['step_time_s']:.6g}, bound {row['lower_bound_s']:.6g}"
        said = "worse than" if worse else "no worse than"
        print(f"{name_of(row):45} step {step_s:.6g}, bound {bound_s:.6g}: {said} {before}", file=sys.stderr, flush=True)
        if asked.accept:
            row |= {"step_time_s": step_s, "lower_bound_s": bound_s}
        elif asked.write:
            row["step_time_s"] = min(row["step_time_s"], step_s)
            row["lower_bound_s"] = max(row["lower_bound_s"], bound_s)
        if asked.write or asked.accept:
            PATH.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    summary = {"rows": len(rows), "worse": num_worse}
    print(json.dumps({"benchmark": "golden", **summary}) if asked.json else summary)
    return int(num_worse > 0)


if __name__ == "__main__":
    sys.exit(main())
