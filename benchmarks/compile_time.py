"""Compile time on a large model: ``python -m benchmarks.compile_time [CONFIG] [--json]``.

Times capture and import from a Hugging Face config (by default an 80-layer Llama 2 70B, 4,096 tokens), the search
problem on 128 GPUs, and the program of one rank. Each stage runs in its own process, so that its peak memory is its
own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).parent / "data" / "models" / "llama-2-70b.json"
CLUSTER, GLOBAL_BATCH, MICRO_BATCH = "dgx-h100:16", 512, 16
SEQ_LEN = 4096
LIMITS = {"capture_s": 90.0, "capture_peak_bytes": 2 * 2**30, "problem_s": 3.0, "lower_s": 2.0}


def capture(config: str) -> dict[str, Any]:
    """Seconds from the config to the canonical graph, including torch's import, and the process's peak bytes."""
    started = time.perf_counter()
    from autosbp.graph_sources import load_model

    graph = load_model(f"hf:{config}", seq_len=SEQ_LEN)
    elapsed = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"graph": graph.to_dict(), "nodes": len(graph.nodes), "capture_s": elapsed, "capture_peak_bytes": peak}


def problem(document: dict[str, Any]) -> dict[str, Any]:
    """Seconds to build the search problem of the slowest mesh view from a bound graph, with cold caches."""
    from autosbp.cluster.spec import load_cluster
    from autosbp.costmodel.boxing import BoxingModel
    from autosbp.costmodel.compute import ComputeModel
    from autosbp.costmodel.network import NetworkModel
    from autosbp.search.problem.builder import ProblemBuilder
    from autosbp.search.problem.mesh_views import mesh_views

    bound, cluster = _bound(document), load_cluster(CLUSTER)
    slowest = 0.0
    for view in mesh_views(cluster.mesh()):
        started = time.perf_counter()
        boxing = BoxingModel(NetworkModel(cluster), view)
        builder = ProblemBuilder(
            bound, boxing, ComputeModel(cluster.device), num_micro=GLOBAL_BATCH // MICRO_BATCH, optimizer="adamw"
        )
        built = builder.build(None)
        slowest = max(slowest, time.perf_counter() - started)
    return {"problem_s": slowest, "variables": built.problem.num_variables}


def lower(document: dict[str, Any]) -> dict[str, Any]:
    """Seconds to lower the plan for one rank."""
    from autosbp.cluster.spec import load_cluster
    from autosbp.executor.lowering import lower as lower_rank
    from autosbp.graph.serialize import from_dict
    from autosbp.search.plan_options import PlanOptions
    from autosbp.search.planner import make_plan

    graph = from_dict(document)
    plan = make_plan(graph, load_cluster(CLUSTER), None, PlanOptions(global_batch=GLOBAL_BATCH, time_limit_s=5.0))
    strategy = plan.strategy
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    started = time.perf_counter()
    program = lower_rank(bound, strategy, 3)
    return {"lower_s": time.perf_counter() - started, "program_nodes": len(list(program.graph.nodes))}


def _bound(document: dict[str, Any]) -> Any:
    from autosbp.graph.serialize import from_dict

    graph = from_dict(document)
    return graph.bind(**dict.fromkeys(graph.symbols, MICRO_BATCH))


def run_in_process(stage: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run a stage in a fresh process and return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(stage, arguments)


def measure(config: str) -> dict[str, Any]:
    found = run_in_process(capture, config)
    document = found.pop("graph")
    return {
        "config": Path(config).stem,
        **found,
        **run_in_process(problem, document),
        **run_in_process(lower, document),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("config", nargs="?", default=str(CONFIG))
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    arguments = parser.parse_args()
    result = measure(arguments.config)
    for key, value in result.items():
        limit = f"   (limit {LIMITS[key]:,.0f})" if key in LIMITS else ""
        print(f"{key:22} {value if isinstance(value, (str, int)) else f'{value:.2f}'}{limit}")
    if arguments.json:
        print(json.dumps({**result, "limits": LIMITS}))


if __name__ == "__main__":
    main()
