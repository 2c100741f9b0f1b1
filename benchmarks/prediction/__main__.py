"""Predicted against measured step times: ``python -m benchmarks.prediction [MODEL@CLUSTER ...] [--json]``.

Runs on emulated clusters, whose links are really slow (root only). Each cluster is calibrated, the calibration is
corrected by trials of a few strategies, and the step times of other strategies that span the cost range are predicted.
Then all of these are trained alternately, by two sets of ranks one after another. Predictions are compared with the
first set; the difference between the sets is the error that no prediction can avoid.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scipy.stats import kendalltau

from autosbp.api import LogicalGraph, PlanOptions, load_cluster, op_keys, predict_costs
from autosbp.calibration import calibrate
from autosbp.costmodel.calibration_correction import fit_correction
from autosbp.costmodel.trial_feedback import trial_residual
from autosbp.errors import AutosbpError
from autosbp.launch.local import Launch
from autosbp.testing.emulated import EmulatedCluster, unavailable_reason
from benchmarks.prediction._chart import chart
from benchmarks.prediction._models import CASES
from benchmarks.prediction._pipelines import stage_op_keys
from benchmarks.prediction._strategies import Candidate, candidates

CLUSTERS = ("emulated:2x2", "emulated:4x1")
LIMITS = {"kendall_tau": 0.9, "median_error": 0.10, "p90_error": 0.20, "regret": 0.05}


@dataclass(frozen=True)
class Effort:
    """Measurement effort.

    Attributes:
        count: strategies to predict and train.
        rounds: timed rounds.
        budget_s: seconds for a calibration.
        op_s: maximum seconds for one direction of an op.
        lessons: trials to learn from.
    """

    count: int
    rounds: int
    budget_s: float
    op_s: float
    lessons: int


def measure(
    graph: LogicalGraph, chosen: Sequence[Candidate], ranks: int, rounds: int, launch: Launch
) -> list[dict[str, Any]]:
    """Median step seconds of each strategy (slowest rank), and whether its collectives match the charged ones."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        request = {
            "graph": graph.to_dict(),
            "strategies": [each.strategy.to_dict() for each in chosen],
            "rounds": rounds,
        }
        (folder / "request.json").write_text(json.dumps(request))
        outcome = launch(
            "benchmarks.prediction._ranks", [str(folder / "request.json"), str(folder / "result.json")], ranks,
            folder / "log", timeout_s=1800,
        )  # fmt: skip
        if outcome.reason:
            sys.exit(f"{outcome.reason}\n{outcome.log_tail}")
        everyone = json.loads((folder / "result.json").read_text())
    rows = []
    for at, each in enumerate(chosen):
        steps = [max(times) for times in zip(*(rank["seconds"][at] for rank in everyone), strict=True)]
        low, middle, high = statistics.quantiles(steps, n=4, method="inclusive")
        rows.append({
            "strategy": each.label,
            "predicted_s": each.costs.step_time_s,
            "measured_s": middle,
            "quartiles_s": [low, high],
            "error": each.costs.step_time_s / middle - 1,
            "parts_s": {
                "compute": each.costs.compute_s, "exposed_comm": each.costs.exposed_comm_s,
                "optimizer": each.costs.optimizer_s,
            },
            "comm_bytes_per_device": each.costs.comm_bytes_per_device,
            "traffic_exact": all(rank["matches"][at] for rank in everyone),
        })  # fmt: skip
    return rows


def summary(rows: Sequence[dict[str, Any]], key: str) -> dict[str, Any]:
    """Accuracy of the predictions in column ``key``: rank correlation, errors, and regret of the predicted best strategy."""
    predicted, measured = ([row[name] for row in rows] for name in (key, "measured_s"))
    errors = sorted(abs(row[key] / row["measured_s"] - 1) for row in rows)
    first = min(rows, key=lambda row: row[key])
    return {
        "strategies": len(rows),
        "kendall_tau": float(kendalltau(predicted, measured).statistic),
        "median_error": statistics.median(errors),
        "p90_error": statistics.quantiles(errors, n=10, method="inclusive")[-1],
        "regret": first["measured_s"] / min(measured) - 1,
        "traffic_exact": all(row["traffic_exact"] for row in rows),
    }


def repeatability(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Difference between two measurements of the same strategies: rank correlation, time differences and regret."""
    first, second = ([row[name] for row in rows] for name in ("measured_s", "again_s"))
    differences = [abs(row["again_s"] / row["measured_s"] - 1) for row in rows]
    best = min(rows, key=lambda row: float(row["measured_s"]))
    return {
        "kendall_tau": float(kendalltau(first, second).statistic),
        "median_difference": statistics.median(differences),
        "p90_difference": statistics.quantiles(differences, n=10, method="inclusive")[-1],
        "regret": best["again_s"] / min(second) - 1,
    }


def run(model: str, cluster_name: str, effort: Effort) -> dict[str, Any]:
    """Calibrate, predict and train."""
    case, cluster = CASES[model], load_cluster(cluster_name)
    graph = case.graph()
    keys = op_keys(graph, cluster, PlanOptions(global_batch=case.batch, micro_batch=case.batch))
    keys = list(dict.fromkeys([*keys, *stage_op_keys(graph, cluster, case.batch)]))
    with EmulatedCluster.of(cluster) as nodes:
        started = time.monotonic()
        calibration = calibrate(
            cluster, op_keys=keys, launch=nodes.launch, budget_s=effort.budget_s, op_s=effort.op_s, timeout_s=1800,
            variants=False,
        )  # fmt: skip
        calibrated_s = time.monotonic() - started
        chosen, others = candidates(graph, cluster, calibration, case.batch, effort.count, effort.lessons)
        taught, trials = calibration, list[dict[str, Any]]()
        if others:
            trials = measure(graph, others, cluster.num_devices, effort.rounds, nodes.launch)
            taught = fit_correction(calibration, [
                trial_residual(graph, each.strategy, cluster, calibration, row["measured_s"])
                for each, row in zip(others, trials, strict=True)
            ])  # fmt: skip
        plain = [each.costs.step_time_s for each in chosen]
        chosen = [replace(each, costs=predict_costs(graph, each.strategy, cluster, taught)) for each in chosen]
        rows = measure(graph, chosen, cluster.num_devices, effort.rounds, nodes.launch)
        again = measure(graph, chosen, cluster.num_devices, effort.rounds, nodes.launch)
        for row, seconds, other in zip(rows, plain, again, strict=True):
            row.update(untaught_s=seconds, again_s=other["measured_s"])
            row["traffic_exact"] = row["traffic_exact"] and other["traffic_exact"]
    return {
        "model": model,
        "cluster": cluster_name,
        "calibration_s": calibrated_s,
        "ops_timed": len(keys),
        **summary(rows, "predicted_s"),
        "untaught": summary(rows, "untaught_s"),
        "repeated": repeatability(rows),
        "correction": asdict(taught.correction),
        "rows": rows,
        "lessons": [{name: row[name] for name in ("strategy", "predicted_s", "measured_s")} for row in trials],
        "calibration": taught.to_dict(),
    }


def show(result: dict[str, Any]) -> None:
    correction, again = result["correction"], result["repeated"]
    print(
        f"{result['model']}@{result['cluster']}: {result['strategies']} strategies, traffic "
        f"{'exact' if result['traffic_exact'] else 'NOT exact'}, calibrated in {result['calibration_s']:.0f} s\n"
        f"  {_figures(result)}\n  calibration alone: {_figures(result['untaught'])}\n"
        f"  learned from {correction['num_trials']} other strategies: ops x {correction['compute']:.2f}, collectives x "
        f"{correction['network']:.2f}, waiting + {1e3 * correction['waiting_s']:.2f} ms\n"
        f"  measured twice: Kendall tau {again['kendall_tau']:.3f}, difference median {again['median_difference']:.1%} p90 "
        f"{again['p90_difference']:.1%}, the first time's best is {again['regret']:.1%} from the second's",
        flush=True,
    )
    for row in result["rows"]:
        print(
            f"    {row['strategy']:<14} predicted {1e3 * row['predicted_s']:7.1f} ms  measured {1e3 * row['measured_s']:7.1f} "
            f"({1e3 * row['quartiles_s'][0]:.1f} to {1e3 * row['quartiles_s'][1]:.1f}), again {1e3 * row['again_s']:.1f}  "
            f"{row['error']:+.1%}",
            flush=True,
        )


def _figures(found: dict[str, Any]) -> str:
    return (
        f"Kendall tau {found['kendall_tau']:.3f}, error median {found['median_error']:.1%} p90 {found['p90_error']:.1%}, "
        f"best predicted is {found['regret']:.1%} from the best"
    )


def main() -> None:
    everything = [f"{model}@{cluster}" for cluster in CLUSTERS for model in CASES]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="MODEL@CLUSTER", help=f"by default {' '.join(everything)}")
    parser.add_argument("--strategies", type=int, default=24, metavar="N")
    parser.add_argument("--lessons", type=int, default=4, metavar="N", help="other strategies, tried before")
    parser.add_argument("--rounds", type=int, default=11, metavar="N", help="timed steps of each strategy")
    parser.add_argument("--budget", type=float, default=240.0, metavar="S", help="for a calibration")
    parser.add_argument("--op-s", type=float, default=0.04, metavar="S", help="for one direction of an op")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the JSON, calibrations included")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="draw predicted against measured, ranked")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw what an earlier run wrote, and measure nothing")
    arguments = parser.parse_args()
    if arguments.draw is not None:
        if arguments.chart is None:
            parser.error("--draw needs --chart")
        arguments.chart.write_text(chart(json.loads(arguments.draw.read_text())["results"]))
        return
    reason = unavailable_reason()
    if reason is not None:
        sys.exit(f"no emulated cluster here: {reason}")
    effort = Effort(arguments.strategies, arguments.rounds, arguments.budget, arguments.op_s, arguments.lessons)
    results = []
    try:
        for each in arguments.cases or everything:
            model, _, cluster = each.partition("@")
            if model not in CASES or not cluster:
                parser.error(f"expected {each}: MODEL@CLUSTER, MODEL one of {', '.join(CASES)}")
            results.append(run(model, cluster, effort))
            show(results[-1])
    except AutosbpError as error:
        sys.exit(str(error))
    document = {"benchmark": "prediction", "limits": LIMITS, "results": results}
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.chart is not None:
        arguments.chart.write_text(chart(results))
    if arguments.json:
        for result in results:
            del result["calibration"]
        print(json.dumps(document))


if __name__ == "__main__":
    main()
