"""What each bound and shortcut of search buys: ``python -m benchmarks.search_ablation [PART ...] [--cases CASE ...]
[--rounds N] [--json]``.

Each part is switched off in turn over the cases of ``benchmarks.search_scale``, every plan in a process of its own, soon
after one of the whole search. A row has, relative to that, the processor time of all processes of a plan, which other work on
the machine changes little, and the step and the gap that come out, as the median of the rounds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.search_scale import CASES, Case

TIME_LIMIT_S = 60.0
"""Of each plan: more than the whole search takes, so that times tell, not the limit."""
MOST_S = 180.0
"""A plan that takes longer is ended, and its part pays."""
BETWEEN = 6
"""Parts that are compared with one plan of the whole search, which is made before them."""
PAYS = 0.05
"""Relative: what a part has to buy in time, in gap (of a step), or in the step of one case at least."""


def _same(value: Any, *_: Any, **__: Any) -> Any:
    return value


def _giving(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _nothing(*_: Any, **__: Any) -> None:
    return None


@dataclass(frozen=True)
class Part:
    """A name in a module, ``module:name`` or ``module:Class.name``, that is replaced to switch a part off: by a value, or by
    what ``around`` makes of what is there."""

    what: str
    places: tuple[str, ...]
    by: Any = None
    around: Callable[[Any], Any] | None = None

    def switch_off(self) -> None:
        for place in self.places:
            module, _, path = place.partition(":")
            owner: Any = importlib.import_module(f"autosbp.search.{module}")
            *parents, name = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            kept = getattr(owner, name)
            setattr(owner, name, self.by if self.around is None else self.around(kept))


def _built(**changed: Any) -> Callable[[Any], Any]:
    """``LayoutProblems.build`` with an argument that is always the same."""
    return lambda build: lambda self, space, limit, **given: build(self, space, limit, **given | changed)


INFINITE = float("inf")
PARTS: Mapping[str, Part] = {
    "stage_bounds": Part(
        "bounds of stages under the memory limit", ("space.stage_limited:StageLimited._bounds_stages",), _giving(False)
    ),
    "shut_at_once": Part(
        "these on two cores, before they are asked for", ("space.stage_limited:StageLimited.shut_at_once",), _nothing
    ),
    "hints": Part("prices that one structure teaches another", ("space.stage_limited:StageLimited._learn",), _nothing),
    "waits": Part(
        "bounds of what stages wait for each other", ("space.stage_limited:StageLimited._waited",),
        around=lambda _: lambda *given, **__: list(given[1].bounds),
    ),
    "cut_by_cut": Part("games of cuts and critical paths", ("space.stage_limited:MOST_STAGES",), 0),
    "sends": Part("messages in bounds of waits", ("bounds.wait_bound:least_messages_s",), _giving(0.0)),
    "whole_blocks": Part("whole blocks a stage", ("space.space_solver:SpaceSolver._blocks_s",), _giving(-INFINITE)),
    "largest": Part("a bound from the largest microbatch", ("space.opening:Opening._largest",), _giving(-INFINITE)),
    "least_work": Part("the least work of a model", ("_least_work:work_bound_s",), _giving(-INFINITE)),
    "cutoff": Part("layouts left out that no better strategy has", ("stages.layouts:LayoutProblems.build",),
                   around=_built(cutoff_s=INFINITE)),
    "dominance": Part("layouts left out that others dominate", ("stages.layouts:LayoutProblems.build",),
                      around=_built(dominated=True)),
    "prune": Part("values left out by reduced costs", ("searchers.exact:prune",), _same),
    "messages": Part("TRW-S before eliminations that are hard", ("searchers.exact:_is_hard",), _giving(False)),
    "forest": Part("small forests at once", ("searchers.exact:_Exact._solve_small",), _giving(False)),
    "chain": Part("repeated blocks by powers", ("searchers.elimination:plan_chain",), _nothing),
    "mix_prices": Part("assignments mixed of two prices", ("searchers.exact:mix_prices",), _nothing),
    "splice": Part("assignments spliced of two", ("searchers.exact:splice",), _nothing),
    "closing": Part("enumeration and CP-SAT of what is left", ("searchers.exact:_Exact._close",), _nothing),
    "raising": Part("other multipliers than the first", ("space.opening:Opening._raised_bound",),
                    around=lambda _: lambda *given: given[2].bound),
    "raising_stages": Part("other multipliers of stages", ("space.walking:Walking._raised_solution",),
                           around=lambda _: lambda *given: given[2]),
    "proposals": Part("multipliers tried everywhere", ("space.opening:PROPOSALS",), ()),
    "message_sizes": Part("messages of the best size", ("space.costing:Costing.choose_messages",), _nothing),
    "smaller_messages": Part("smaller messages where memory binds", ("space.costing:with_smaller_messages",), _same),
    "earlier_weights": Part(
        "gradients of weights that are put off less", ("space.costing:with_earlier_weights",),
        around=lambda _: lambda *given: given[1],
    ),
    "leaner": Part("leaner layouts with the same schedule", ("space.space_solver:SpaceSolver._leaner",), _nothing),
    "rough": Part("spaces searched roughly first", ("space.space_solver:SpaceSolver.begin_roughly",), _nothing),
    "no_better": Part(
        "ways to store parameters that buy nothing", ("space.space_solver:SpaceSolver._is_no_better",), _giving(False)
    ),
    "uneven": Part("stages that recompute what each has to", ("space.recomputing:Recomputing.evens",), False),
    "tightly": Part(
        "recomputed blocks under the memory limit", ("space.recomputing:Recomputing.recompute_tightly",), _nothing
    ),
    "two_processes": Part("a second process", ("stages.layouts:LayoutProblems.pays_to_share",), property(_giving(False))),
    "garbage": Part("fewer looks for cycles", ("_garbage:THRESHOLDS",), (700, 10, 10)),
    "kernels": Part("loops in C", ("searchers.loops:kernels", "searchers.tables:kernels"), _nothing),
}  # fmt: skip


def plan(case: Case, off: str | None) -> dict[str, Any]:
    """In this process."""
    if off is not None:
        PARTS[off].switch_off()
    from autosbp.api import PlanOptions, capture, load_cluster, make_plan

    graph, cluster = capture(case.model), load_cluster(case.cluster)
    began, before = time.perf_counter(), os.times()
    document = make_plan(
        graph, cluster, None, PlanOptions(global_batch=case.batch, baselines=(), time_limit_s=TIME_LIMIT_S)
    ).document
    after = os.times()
    spent = [
        getattr(after, name) - getattr(before, name) for name in ("user", "system", "children_user", "children_system")
    ]
    return {
        "processor_s": sum(spent), "seconds": time.perf_counter() - began,
        "step_time_s": document["step_time_s"], "gap": document["gap"],
    }  # fmt: skip


def measure(name: str, off: str | None) -> dict[str, Any] | None:
    """In a process of its own; None where that does not end."""
    program = [sys.executable, "-m", "benchmarks.search_ablation", "--one", name, *([] if off is None else [off])]
    try:
        run = subprocess.run(program, capture_output=True, text=True, timeout=MOST_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    if run.returncode:
        sys.exit(f"{name} without {off}: {run.stderr}")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def compared(without: Mapping[str, Any] | None, whole: Mapping[str, Any] | None, part: str) -> dict[str, float | None]:
    """Times the whole search's time and step, and what the gap is more; None where one did not end. Time is that of processors,
    but of a part that is one more of these."""
    if without is None or whole is None:
        return {"time": None, "step": None, "gap": None}
    clock = "seconds" if part == "two_processes" else "processor_s"
    gaps = [1.0 if each["gap"] is None else each["gap"] for each in (without, whole)]
    return {
        "time": without[clock] / whole[clock],
        "step": without["step_time_s"] / whole["step_time_s"],
        "gap": gaps[0] - gaps[1],
    }


def median(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Of each column; None where a round did not end."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {
        name: None if None in found else statistics.median(each for each in found if each is not None)
        for name, found in columns.items()
    }


def pays(rows: Mapping[str, Mapping[str, float | None]]) -> bool:
    """Whether a part buys enough on some case."""
    return any(
        row["time"] is None or row["step"] is None or row["gap"] is None
        or row["time"] > 1 + PAYS or row["step"] > 1 + PAYS or row["gap"] > PAYS
        for row in rows.values()
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search_ablation", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"by default {' '.join(PARTS)}")
    parser.add_argument("--cases", nargs="+", metavar="CASE", default=list(CASES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="end in one line of JSON")
    asked = parser.parse_args()
    if asked.one:
        name, *off = asked.parts
        print(json.dumps(plan(CASES[name], *(off or [None]))))
        return 0
    if unknown := {*asked.parts} - {*PARTS} | {*asked.cases} - {*CASES}:
        parser.error(f"{', '.join(sorted(unknown))}: parts and cases of {', '.join([*PARTS, *CASES])} are expected")
    parts = asked.parts or list(PARTS)
    rows: dict[str, dict[str, list[Mapping[str, float | None]]]] = {part: {} for part in parts}
    for name in [name for _ in range(asked.rounds) for name in asked.cases]:
        for first in range(0, len(parts), BETWEEN):
            whole = measure(name, None)
            for part in parts[first : first + BETWEEN]:
                rows[part].setdefault(name, []).append(compared(measure(name, part), whole, part))
                print(f"{name} without {part}: {rows[part][name][-1]}", file=sys.stderr, flush=True)
    found: dict[str, dict[str, Any]] = {}
    for part, cases in rows.items():
        medians = {name: median(each) for name, each in cases.items()}
        found[part] = {"what": PARTS[part].what, "pays": pays(medians), "cases": medians}
        show(part, found[part])
    if asked.json:
        print(json.dumps({"benchmark": "search_ablation", "rounds": asked.rounds, "parts": found}))
    return 0


def show(part: str, row: Mapping[str, Any]) -> None:
    """One line: the most that it buys of each, and where."""
    told = []
    for column, rest in (("time", 1.0), ("step", 1.0), ("gap", 0.0)):
        known = {name: each[column] for name, each in row["cases"].items()}
        most = max(known, key=lambda name: INFINITE if known[name] is None else known[name])
        value = "over" if known[most] is None else f"{known[most] - rest:+.1%}"
        told.append(f"{column} {value} ({most})")
    print(f"{part:<18} {'pays' if row['pays'] else 'LEAVES':<7} {'; '.join(told)}  {row['what']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
