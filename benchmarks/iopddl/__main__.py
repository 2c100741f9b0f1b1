"""Sharding problems of a contest: ``python -m benchmarks.iopddl FILE --seconds S [--out FILE] [--json]``.

Runs the ``anytime`` searcher on an instance of the contest on intra-operator parallelism and prints the exact cost of
its solution and a lower bound. ``--out`` writes the assignment, a JSON list with one index per node. Everything
finishes within the given seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from autosbp.errors import AutosbpError, InfeasibleError, InputError
from benchmarks.iopddl import BEGAN
from benchmarks.iopddl._format import Instance, load

LEAST_S = 1.0
RESERVED = 0.02
"""Fraction of the given seconds reserved for the end, plus one second."""
ROUNDING = 1e-9
"""Relative rounding error of sums of doubles, subtracted from the bound."""


def solve(instance: Instance, deadline: float, seed: int) -> dict[str, Any]:
    """The best assignment found, its exact cost and memory, and a lower bound.

    Raises:
        InfeasibleError: no assignment exists, or none was found.
    """
    from autosbp.search.solvers.anytime.reduction import reduce_problem
    from autosbp.search.solvers.anytime.solver import AnytimeSolver

    core = reduce_problem(instance.problem())
    began = time.monotonic()
    solver = AnytimeSolver(core.problem, seed, deadline, lambda _: False)
    found, network = solver.run(), solver.network
    if found.x is None:
        detail = "there is no assignment (proved)" if found.infeasible else "no assignment was found; this is no proof"
        raise InfeasibleError("usage_limit", math.inf if instance.limit is None else instance.limit, None, detail)
    chosen = core.expand(found.x)
    cost, used = instance.cost(chosen), instance.most_used(chosen)
    if instance.limit is not None and used > instance.limit:
        raise AssertionError(f"an assignment that uses {used} of {instance.limit} bytes was returned")
    bound = math.ceil(found.bound - ROUNDING * abs(found.bound)) if math.isfinite(found.bound) else None
    proved = bound is not None and (found.proved or bound >= cost)
    return {
        "cost": cost,
        "lower_bound": cost if proved else bound,
        "gap": 0.0 if proved else None if bound is None or not cost else (cost - bound) / abs(cost),
        "memory": used,
        "usage_limit": instance.limit,
        "nodes": len(instance.costs),
        "nodes_searched": len(network.num_values),
        "nodes_with_a_choice": int((network.num_values > 1).sum()),
        "table_entries_searched": network.num_entries,
        "search_s": round(time.monotonic() - began, 2),
        "solution": chosen,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.iopddl", description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE", nargs="?", help="an instance: .json or .json.gz")
    parser.add_argument("--seconds", type=float, default=60.0, help="for everything, loading included")
    parser.add_argument("--out", type=Path, help="write the assignment there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args()
    if arguments.file is None:
        print("no FILE: instances are in the repository google/iopddl on GitHub")
        return 0
    try:
        if not arguments.seconds >= LEAST_S:
            raise InputError("--seconds", arguments.seconds, f"expected {LEAST_S:g} or more")
        if arguments.out and (arguments.out.is_dir() or not os.access(arguments.out.parent, os.W_OK)):
            raise InputError("--out", str(arguments.out), "expected a file in a folder that can be written")
        deadline = BEGAN + arguments.seconds * (1.0 - RESERVED) - 1.0
        result = solve(load(arguments.file), deadline, arguments.seed)
    except InfeasibleError as error:
        print(error, file=sys.stderr)
        return 3
    except AutosbpError as error:
        print(error, file=sys.stderr)
        return 2
    solution = result.pop("solution")
    if arguments.out:
        arguments.out.write_text(json.dumps(solution))
    result["total_s"] = round(time.monotonic() - BEGAN, 2)
    _show(arguments.file.name, result, as_json=arguments.json)
    return 0


def _show(name: str, result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"file": name, **result}))
        return
    gap = "none" if result["gap"] is None else f"{result['gap']:.2%}"
    print(f"{name}: cost {result['cost']}, lower bound {result['lower_bound']}, gap {gap}")
    print(f"  memory {result['memory']} of {result['usage_limit']}")
    print(
        f"  {result['nodes']} nodes, {result['nodes_with_a_choice']} with a choice after reduction, "
        f"{result['table_entries_searched']} table entries; {result['search_s']} s of search, {result['total_s']} s in all"
    )


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # do not wait for background threads
