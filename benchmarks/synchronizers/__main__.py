"""Step times of synchronization strategies, predicted and measured:

    python -m benchmarks.synchronizers [MODEL@CLUSTER ...] [--json] [-o FILE]
    python -m benchmarks.synchronizers --ddp [--json]

Calibrates an emulated cluster with slow links (root only), and trains on it with every builder and number of variables per
message, in alternating steps; the time of a step is that of its slowest rank. With ``-o``, results of earlier runs in the
file are kept, except those of the same cases. ``--ddp`` instead compares with torch's DistributedDataParallel at its
default settings, step by step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autosbp.api import Calibration, Cluster, LogicalGraph, load_cluster, predict_costs
from autosbp.calibration import calibrate
from autosbp.launch.local import Launch, run_ranks
from autosbp.search.sync_builders import with_sync
from autosbp.search.sync_search import SyncSearch
from autosbp.testing.emulated import EmulatedCluster, unavailable_reason
from benchmarks.lowering import __main__ as lowering
from benchmarks.prediction.__main__ import measure, summary
from benchmarks.prediction._strategies import Candidate
from benchmarks.synchronizers._cases import CLUSTERS, MODELS, replica_op_keys, strategies

FACTORS = {
    "merging": ("all_reduce 128", "all_reduce 1"),
    "partition": ("all_reduce_partitioned", "all_reduce"),
    "hierarchy": ("all_reduce_hierarchical", "all_reduce"),
    "servers": ("ps_partitioned", "all_reduce"),
    "balance": ("ps_balanced", "ps"),
    "transfer stations": ("ps_hierarchical", "ps_partitioned"),
    "sparse rows": ("sparse_all_gather", "all_reduce"),
    "sparse rows of servers": ("parallax", "all_reduce"),
}
"""Pairs of builders to compare by the ratio of measured step times, with the fastest chunk of each; below 1 the first wins."""


def factors(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Ratios of the pairs in ``FACTORS`` of which both builders ran."""

    def least_s(name: str) -> float | None:
        times = [row["measured_s"] for row in rows if name in (row["strategy"], row["strategy"].split()[0])]
        return min(times, default=None)

    pairs = {name: (least_s(one), least_s(other)) for name, (one, other) in FACTORS.items()}
    return {name: one / other for name, (one, other) in pairs.items() if one is not None and other is not None}


def run(cluster_name: str, models: Sequence[str], rounds: int, budget_s: float) -> Iterator[dict[str, Any]]:
    """Calibrate a cluster once, then predict and train the strategies of each model."""
    cluster = CLUSTERS[cluster_name].spec()
    graphs = {name: MODELS[name].graph() for name in models}
    keys = [key for name in models for key in replica_op_keys(graphs[name], MODELS[name].batch, cluster.num_devices)]
    with EmulatedCluster.of(cluster) as nodes:
        calibration = calibrate(
            cluster,
            op_keys=list(dict.fromkeys(keys)),
            launch=nodes.launch,
            budget_s=budget_s,
            op_s=0.01,
            timeout_s=600,
            variants=False,
        )
        for name, graph in graphs.items():
            yield compare(name, cluster_name, graph, cluster, calibration, rounds, nodes.launch)


def compare(
    model: str,
    cluster_name: str,
    graph: LogicalGraph,
    cluster: Cluster,
    calibration: Calibration,
    rounds: int,
    launch: Launch,
) -> dict[str, Any]:
    """Predict and train the strategies of one model."""
    tried = dict(strategies(graph, cluster, MODELS[model].batch))
    tried["auto"] = SyncSearch(graph, tried["default"], cluster, calibration).best()
    chosen = [
        Candidate(label, strategy, predict_costs(graph, strategy, cluster, calibration))
        for label, strategy in tried.items()
    ]
    rows = measure(graph, chosen, cluster.num_devices, rounds, launch)
    return {
        "model": model,
        "cluster": cluster_name,
        "winner": min(rows, key=lambda row: float(row["measured_s"]))["strategy"],
        "predicted_winner": min(rows, key=lambda row: float(row["predicted_s"]))["strategy"],
        **summary(rows, "predicted_s"),
        "factors": factors(rows),
        "rows": sorted(rows, key=lambda row: float(row["measured_s"])),
    }


def show(result: dict[str, Any]) -> None:
    """Print the strategies of one case, fastest first."""
    print(
        f"{result['model']}@{result['cluster']}: fastest {result['winner']}, predicted {result['predicted_winner']}, "
        f"{result['regret']:.1%} slower; Kendall tau {result['kendall_tau']:.2f}, error median {result['median_error']:.0%}; "
        f"traffic {'exact' if result['traffic_exact'] else 'NOT exact'}"
    )
    print("  ratios: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in result["factors"].items()))
    for row in result["rows"]:
        print(
            f"    {row['strategy']:<30} measured {1e3 * row['measured_s']:7.1f} ms, predicted {1e3 * row['predicted_s']:7.1f}"
        )


def against_ddp(pairs: int) -> list[dict[str, Any]]:
    """Rows of ``benchmarks.lowering`` for the builder ``ddp``, which uses DistributedDataParallel's buckets."""
    cases = []
    for name in lowering.MODELS:
        told = lowering.case("ddp", name)
        graph = lowering.MODELS[name].graph(name)
        plain = lowering.data_parallel(graph, 4, lowering.MODELS[name].batch)
        cases.append({**told, "strategy": with_sync(graph, plain, load_cluster("local:4"), "ddp").to_dict()})
    with tempfile.TemporaryDirectory() as name:
        request, result = Path(name) / "request.json", Path(name) / "result.json"
        request.write_text(json.dumps({"pairs": pairs, "cases": cases}))
        outcome = run_ranks(
            "benchmarks.lowering._ranks", [str(request), str(result)], 4, Path(name) / "log", timeout_s=1800
        )
        if outcome.reason:
            sys.exit(f"{outcome.reason}\n{outcome.log_tail}")
        everyone = json.loads(result.read_text())
    rows = [lowering.row(each, [rank[at] for rank in everyone]) for at, each in enumerate(cases)]
    for row in rows:
        low, high = row["ratio_quartiles"]
        print(f"ddp {row['model']:<6} ratio {row['ratio']:.3f} ({low:.3f} to {high:.3f}), {row['pairs']} pairs")
    print(f"median ratio {statistics.median(row['ratio'] for row in rows):.3f}")
    return rows


def _write(output: Path | None, document: dict[str, Any]) -> None:
    if output is not None:
        output.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    everything = [f"{model}@{cluster}" for cluster in CLUSTERS for model in MODELS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="MODEL@CLUSTER", help=f"by default {' '.join(everything)}")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="timed steps of each strategy")
    parser.add_argument("--budget", type=float, default=120.0, metavar="S", help="time budget of a calibration")
    parser.add_argument("--ddp", action="store_true", help="compare with torch's DistributedDataParallel instead")
    parser.add_argument(
        "--pairs", type=int, default=15, metavar="N", help="with --ddp: number of measured pairs of steps"
    )
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="add the results to this JSON file")
    arguments = parser.parse_args()
    document: dict[str, Any] = {"benchmark": "synchronizers", "results": [], "ddp": []}
    if arguments.output is not None and arguments.output.exists():
        document = json.loads(arguments.output.read_text())
    if arguments.ddp:
        document["ddp"] = against_ddp(arguments.pairs)
    else:
        reason = unavailable_reason()
        if reason is not None:
            sys.exit(f"no emulated cluster here: {reason}")
        chosen: dict[str, list[str]] = {}
        for each in arguments.cases or everything:
            model, _, cluster = each.partition("@")
            if model not in MODELS or cluster not in CLUSTERS:
                parser.error(f"expected MODEL@CLUSTER of {' '.join(everything)}, not {each}")
            chosen.setdefault(cluster, []).append(model)
        for cluster, models in chosen.items():
            for found in run(cluster, models, arguments.rounds, arguments.budget):
                show(found)
                place = found["model"], found["cluster"]
                kept = [old for old in document["results"] if (old["model"], old["cluster"]) != place]
                document["results"] = [*kept, found]
                _write(arguments.output, document)
    _write(arguments.output, document)
    if arguments.json:
        print(json.dumps(document))


if __name__ == "__main__":
    main()
