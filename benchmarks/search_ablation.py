"""Benefit of each bound and shortcut of the search: ``python -m benchmarks.search_ablation [PART ...] [OPTIONS]``.

Options: ``--cases CASE ...``, ``--rounds N``, ``--everywhere``, ``--json``. Each part is disabled in turn over the
cases of ``benchmarks.search_scale``. Every plan runs in its own process, soon after a plan of the complete search. A
row compares the two: processor time of all processes of a plan, which other work on the machine changes little, step
time and gap, as the median of the rounds. A part that pays on one case is not measured on later cases, unless
``--everywhere`` is given.
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
"""Time limit of each plan: more than the complete search takes, so that times are not cut off."""
MAX_PLAN_S = 180.0
"""A plan that takes longer is stopped, and its part counts as paying."""
PARTS_PER_BASELINE = 6
"""Number of parts compared with one plan of the complete search, which runs before them."""
MIN_BENEFIT = 0.05
"""Minimum relative improvement of time, gap (of a step) or step time on at least one case."""


def _identity(value: Any, *_: Any, **__: Any) -> Any:
    return value


def _always_returns(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _returns_none(*_: Any, **__: Any) -> None:
    return None


@dataclass(frozen=True)
class Part:
    """A part of the search and how to disable it.

    Attributes:
        what: description.
        places: names to replace, as ``module:name`` or ``module:Class.name`` below ``autosbp``.
        by: replacement value.
        around: alternatively, a function that maps the original to its replacement.
    """

    what: str
    places: tuple[str, ...]
    by: Any = None
    around: Callable[[Any], Any] | None = None

    def switch_off(self) -> None:
        for place in self.places:
            module, _, path = place.partition(":")
            owner: Any = importlib.import_module(f"autosbp.{module}")
            *parents, name = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            kept = getattr(owner, name)
            setattr(owner, name, self.by if self.around is None else self.around(kept))


def _build_with(**changed: Any) -> Callable[[Any], Any]:
    """Wrap ``LayoutProblems.build`` so that some arguments always have the given values."""
    return lambda build: lambda self, space, limit, **given: build(self, space, limit, **given | changed)


INFINITE = float("inf")
_TREE = "search.branch_and_bound."
PARTS: Mapping[str, Part] = {
    "stage_bounds": Part(
        "bounds of stages under the memory limit",
        (_TREE + "stage_pruning:StagePruning._bounds_stages",),
        _always_returns(False),
    ),
    "shut_at_once": Part(
        "these on two cores, before they are asked for",
        (_TREE + "stage_pruning:StagePruning.shut_at_once",),
        _returns_none,
    ),
    "hints": Part(
        "prices that one structure teaches another", (_TREE + "stage_pruning:StagePruning._learn",), _returns_none
    ),
    "waits": Part(
        "bounds of what stages wait for each other",
        (_TREE + "stage_pruning:StagePruning._waited",),
        around=lambda _: lambda *given, **__: list(given[1].bounds),
    ),
    "cut_by_cut": Part("games of cuts and critical paths", (_TREE + "stage_pruning:MAX_GAME_STAGES",), 0),
    "sends": Part(
        "messages in bounds of waits", ("search.bounds.pipeline_bound:least_messages_s",), _always_returns(0.0)
    ),
    "whole_blocks": Part(
        "whole blocks a stage", (_TREE + "subproblem_solver:SubproblemSolver.blocks_s",), _always_returns(-INFINITE)
    ),
    "largest": Part(
        "a bound from the largest microbatch",
        (_TREE + "root_relaxations:RootRelaxations.largest",),
        _always_returns(-INFINITE),
    ),
    "least_work": Part("the least work of a model", ("search.least_work:work_bound_s",), _always_returns(-INFINITE)),
    "cutoff": Part(
        "layouts left out that no better strategy has",
        ("search.stages.layout_problems:LayoutProblems.build",),
        around=_build_with(cutoff_s=INFINITE),
    ),
    "dominance": Part(
        "layouts left out that others dominate",
        ("search.stages.layout_problems:LayoutProblems.build",),
        around=_build_with(dominated=True),
    ),
    "prune": Part("values left out by reduced costs", ("search.solvers.exact:prune",), _identity),
    "messages": Part(
        "TRW-S before eliminations that are hard", ("search.solvers.exact:_is_hard",), _always_returns(False)
    ),
    "forest": Part("small forests at once", ("search.solvers.exact:_Exact._solve_small",), _always_returns(False)),
    "chain": Part("repeated blocks by powers", ("search.solvers.elimination:plan_chain",), _returns_none),
    "mix_prices": Part(
        "assignments mixed of two prices", ("search.solvers.exact:search_mixed_multipliers",), _returns_none
    ),
    "splice": Part("assignments spliced of two", ("search.solvers.exact:splice",), _returns_none),
    "closing": Part("enumeration and CP-SAT of what is left", ("search.solvers.exact:_Exact._close",), _returns_none),
    "raising": Part(
        "other multipliers than the first",
        (_TREE + "root_relaxations:RootRelaxations._raised_bound",),
        around=lambda _: lambda *given: given[2].bound,
    ),
    "raising_stages": Part(
        "other multipliers of stages",
        (_TREE + "microbatch_sweep:MicrobatchSweep._raised_solution",),
        around=lambda _: lambda *given: given[2],
    ),
    "proposals": Part("multipliers tried everywhere", (_TREE + "root_relaxations:PROPOSALS",), ()),
    "message_sizes": Part(
        "messages of the best size", (_TREE + "strategy_coster:StrategyCoster.choose_messages",), _returns_none
    ),
    "smaller_messages": Part(
        "smaller messages where memory binds", (_TREE + "strategy_coster:with_smaller_buckets",), _identity
    ),
    "earlier_weights": Part(
        "gradients of weights that are put off less",
        (_TREE + "strategy_coster:with_shorter_wgrad_lag",),
        around=lambda _: lambda *given: given[1],
    ),
    "leaner": Part(
        "leaner layouts with the same schedule", (_TREE + "subproblem_solver:SubproblemSolver.leaner",), _returns_none
    ),
    "rough": Part(
        "spaces searched roughly first", (_TREE + "subproblem_solver:SubproblemSolver.begin_roughly",), _returns_none
    ),
    "no_better": Part(
        "ways to store parameters that buy nothing",
        (_TREE + "subproblem_solver:SubproblemSolver._is_no_better",),
        _always_returns(False),
    ),
    "uneven": Part(
        "stages that recompute what each has to", (_TREE + "strategy_coster:StrategyCoster.stages_alike",), False
    ),
    "tightly": Part(
        "recomputed blocks under the memory limit",
        (_TREE + "checkpointing_search:CheckpointingSearch.recompute_tightly",),
        _returns_none,
    ),
    "two_processes": Part(
        "a second process",
        ("search.stages.layout_problems:LayoutProblems.pays_to_share",),
        property(_always_returns(False)),
    ),
    "garbage": Part("fewer looks for cycles", ("utils.gc_thresholds:THRESHOLDS",), (700, 10, 10)),
    "kernels": Part(
        "loops in C",
        ("search.solvers.minplus_backend:load_kernels", "search.solvers.cost_tables:load_kernels"),
        _returns_none,
    ),
}


def plan(case: Case, off: str | None) -> dict[str, Any]:
    """Plan in this process with the part ``off`` disabled."""
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
    """Plan in a new process; None if it exceeds ``MAX_PLAN_S``."""
    program = [sys.executable, "-m", "benchmarks.search_ablation", "--one", name, *([] if off is None else [off])]
    try:
        run = subprocess.run(program, capture_output=True, text=True, timeout=MAX_PLAN_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    if run.returncode:
        sys.exit(f"{name} without {off}: {run.stderr}")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def compared(without: Mapping[str, Any] | None, whole: Mapping[str, Any] | None, part: str) -> dict[str, float | None]:
    """Time and step relative to the complete search, and the increase of the gap; None if one did not end.

    Time is processor time, except for the part that adds a process: there it is wall clock.
    """
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
    """Median of each column; None if a round did not end."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {
        name: None if None in found else statistics.median(each for each in found if each is not None)
        for name, found in columns.items()
    }


def pays(rows: Mapping[str, Mapping[str, float | None]]) -> bool:
    """Whether a part pays on some case."""
    return any(
        row["time"] is None or row["step"] is None or row["gap"] is None
        or row["time"] > 1 + MIN_BENEFIT or row["step"] > 1 + MIN_BENEFIT or row["gap"] > MIN_BENEFIT
        for row in rows.values()
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search_ablation", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"by default {' '.join(PARTS)}")
    parser.add_argument("--cases", nargs="+", metavar="CASE", default=list(CASES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--everywhere", action="store_true", help="also on the cases after one where a part pays")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="end in one line of JSON")
    asked = parser.parse_args()
    if asked.one:
        name, *off = asked.parts
        print(json.dumps(plan(CASES[name], *(off or [None]))))
        return 0
    if unknown := {*asked.parts} - {*PARTS} | {*asked.cases} - {*CASES}:
        parser.error(f"{', '.join(sorted(unknown))}: expected parts and cases of {', '.join([*PARTS, *CASES])}")
    parts = asked.parts or list(PARTS)
    rows: dict[str, dict[str, list[Mapping[str, float | None]]]] = {part: {} for part in parts}
    for name in asked.cases:
        for _ in range(asked.rounds):
            for first in range(0, len(parts), PARTS_PER_BASELINE):
                whole = measure(name, None)
                for part in parts[first : first + PARTS_PER_BASELINE]:
                    rows[part].setdefault(name, []).append(compared(measure(name, part), whole, part))
                    print(f"{name} without {part}: {rows[part][name][-1]}", file=sys.stderr, flush=True)
        if not asked.everywhere:
            parts = [part for part in parts if not pays({name: median(rows[part][name])})]
    found: dict[str, dict[str, Any]] = {}
    for part, cases in rows.items():
        medians = {name: median(each) for name, each in cases.items()}
        found[part] = {"what": PARTS[part].what, "pays": pays(medians), "cases": medians}
        show(part, found[part])
    if asked.json:
        print(json.dumps({"benchmark": "search_ablation", "rounds": asked.rounds, "parts": found}))
    return 0


def show(part: str, row: Mapping[str, Any]) -> None:
    """Print one line: the part's largest benefit in each column, and on which case."""
    told = []
    for column, rest in (("time", 1.0), ("step", 1.0), ("gap", 0.0)):
        known = {name: each[column] for name, each in row["cases"].items()}
        most = max(known, key=lambda name: INFINITE if known[name] is None else known[name])
        value = "over" if known[most] is None else f"{known[most] - rest:+.1%}"
        told.append(f"{column} {value} ({most})")
    print(f"{part:<18} {'pays' if row['pays'] else 'LEAVES':<7} {'; '.join(told)}  {row['what']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
