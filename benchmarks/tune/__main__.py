"""Tuning by trials on emulated clusters: ``python -m benchmarks.tune [MODEL@CLUSTER ...] [--json]`` (root only).

Each pair is calibrated once. Then every proposer (the ranking model, guided random sampling, Optuna's TPE) gets the same
number of trials, of which the first ones measure the same fixed strategies: baselines and synchronization builders. Trials
are stored in ``--folder``, where a later run resumes; ``--seconds`` ends a run early.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autosbp.api import Calibration, op_keys, tune
from autosbp.calibration import calibrate
from autosbp.testing.emulated import EmulatedCluster, unavailable_reason
from autosbp.tuning.charts import accuracy_chart, best_chart, hit_chart, joined
from autosbp.tuning.options import TuneOptions
from autosbp.tuning.strategy_space import StrategySpace
from autosbp.tuning.summary import tuning_summary
from autosbp.tuning.trial_store import read_trials
from autosbp.tuning.tuner import TuningState
from autosbp.utils.json_io import read_file
from benchmarks.tune._accuracy import accuracy_by_trials
from benchmarks.tune._cases import CALIBRATION_S, EFFORT, OP_S, PAIRS, PROPOSERS, Pair, pair_named

LIMITS = {"speedup": 1.2, "pairs_above": 2, "least_speedup": 1.0}
"""Targets: this speedup over the best fixed strategy on this number of pairs, and never slower."""


class Clock:
    """Progress callback that ends tuning after a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def goes_on(self, state: TuningState) -> bool:
        if state.num_trials % 20 == 0:
            print(f"  trial {state.num_trials}: best {1e3 * state.best_s:.1f} ms", flush=True)
        return time.monotonic() < self.end


def calibrated(pair: Pair, nodes: EmulatedCluster, folder: Path) -> Calibration:
    """The pair's calibration, read from the folder if an earlier run has stored it."""
    path = folder / "calibration.json"
    if not path.exists():
        print(f"{pair.name}: calibrating", flush=True)
        found = calibrate(
            nodes.spec, op_keys=op_keys(pair.graph, nodes.spec, pair.options), launch=nodes.launch,
            budget_s=CALIBRATION_S, op_s=OP_S, timeout_s=900, variants=False,
        )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found.to_dict()))
    return Calibration.from_dict(read_file(path))


def run(pair: Pair, proposers: Sequence[str], trials: int, folder: Path, clock: Clock) -> bool:
    """Tune with each proposer; returns whether all trials are done."""
    with EmulatedCluster(pair.shape.nodes, pair.shape.ranks_per_node, pair.shape.rate_mbit) as nodes:
        calibration = calibrated(pair, nodes, folder)
        for name in proposers:
            if time.monotonic() >= clock.end:
                return False
            print(f"{pair.name}: {name}", flush=True)
            asked = TuneOptions(trials=trials, proposer=name, effort=EFFORT)
            found = tune(
                pair.graph, nodes.spec, folder / name, calibration, pair.options, asked, launch=nodes.launch,
                progress=clock.goes_on,
            )  # fmt: skip
            if found.stopped == "cancelled":
                return False
    return True


def report(pair: Pair, folder: Path) -> dict[str, Any]:
    """Summary of a pair's trials."""
    searches = {}
    for name in PROPOSERS:
        if (folder / name).exists():
            searches[name] = tuning_summary(read_trials(folder / name))
    result: dict[str, Any] = {"pair": pair.name, "searches": {}}
    for name, summary in searches.items():
        fixed = {row["origin"]: row["step_time_s"] for row in summary["trials"] if row["choices"] is None}
        fixed.pop("confirmed", None)
        result["searches"][name] = {
            **{key: summary[key] for key in ("num_trials", "num_failed", "best", "baseline", "speedup")},
            "fixed_s": fixed,
            "hit_rate": summary["hit_rate"],
            "best_so_far_s": summary["best_so_far_s"],
            "ranking_accuracy": summary["ranking_accuracy"],
        }
    if {"ranked", "random"} <= set(searches):
        calibration = Calibration.from_dict(read_file(folder / "calibration.json"))
        space = StrategySpace(pair.graph, calibration.cluster, calibration, pair.options)
        seen, held_out = read_trials(folder / "ranked"), read_trials(folder / "random")
        result["held_out_accuracy"] = accuracy_by_trials(space, seen, held_out)
    return result


def show(result: dict[str, Any]) -> None:
    print(result["pair"])
    for name, each in result["searches"].items():
        best, base = each["best"], each["baseline"]
        rate = each["hit_rate"][-1]
        print(
            f"  {name:<8} {each['num_trials']:4d} trials, {each['num_failed']} failed: best {1e3 * best['step_time_s']:.1f} ms "
            f"({best['origin']}), best fixed {1e3 * base['step_time_s']:.1f} ms ({base['origin']}): {each['speedup']:.3f}x, "
            f"hit rate {'-' if rate is None else f'{rate:.0%}'}"
        )
    for row in result.get("held_out_accuracy", ()):
        buckets = ", ".join("-" if each is None else f"{each:.2f}" for each in row["buckets"])
        print(
            f"  after {row['trials']:3d} trials: {row['accuracy']:.3f} of held-out pairs ranked right; by bucket {buckets}"
        )


def chart(results: Sequence[dict[str, Any]]) -> str:
    """SVG with a row of three charts for each pair."""
    found = []
    for result in results:
        searches = list(result["searches"].items())
        found += [
            best_chart(searches, f"{result['pair']}: best so far"), hit_chart(searches, f"{result['pair']}: hit rate"),
            accuracy_chart(_phases(result), f"{result['pair']}: ranking accuracy, held out"),
        ]  # fmt: skip
    return joined(found)


def _phases(result: dict[str, Any]) -> list[dict[str, Any]]:
    rows = result.get("held_out_accuracy", [])
    first = rows[0]["accuracy"] if rows else None
    return [{"model": row["accuracy"], "cost_model": first} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pairs", nargs="*", metavar="MODEL@CLUSTER", help=f"by default {' '.join(PAIRS)}")
    parser.add_argument("--trials", type=int, default=200, metavar="N", help="number of trials of each proposer")
    parser.add_argument(
        "--proposer", action="append", choices=PROPOSERS, help="run only this proposer; repeatable; by default all"
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="folder of trials, where a run resumes")
    parser.add_argument("--seconds", type=float, default=86_400.0, metavar="S", help="end after this time")
    parser.add_argument("--report", action="store_true", help="only report the trials of --folder, without measuring")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the JSON")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="write charts")
    arguments = parser.parse_args()
    try:
        pairs = [pair_named(name) for name in arguments.pairs or PAIRS]
    except ValueError as error:
        parser.error(str(error))
    if not arguments.report and (reason := unavailable_reason()) is not None:
        sys.exit(f"no emulated cluster here: {reason}")
    with tempfile.TemporaryDirectory() as temporary:
        folder, clock = arguments.folder or Path(temporary), Clock(arguments.seconds)
        if not arguments.report:
            proposers = arguments.proposer or PROPOSERS
            done = [run(pair, proposers, arguments.trials, folder / pair.name, clock) for pair in pairs]
            if not all(done):
                sys.exit("the time is over; run again to go on")
        results = [report(pair, folder / pair.name) for pair in pairs if (folder / pair.name).exists()]
    for result in results:
        show(result)
    document = {"benchmark": "tune", "limits": LIMITS, "effort": EFFORT.to_dict(), "results": results}
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.chart is not None:
        arguments.chart.write_text(chart(results))
    if arguments.json:
        print(json.dumps(document))


if __name__ == "__main__":
    main()
