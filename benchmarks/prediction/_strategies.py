"""The strategies of a comparison, chosen with a fixed seed before anything runs.

Data parallel, the best Megatron-like grid, the plan, some pipelines, and samples that span the range of predicted
costs; also a few others to learn from first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autosbp.api import Calibration, Cluster, LogicalGraph, PlanOptions, make_plan, predict_costs
from autosbp.plan.plan import Costs, Strategy
from autosbp.testing.strategy_samples import sample_strategies
from benchmarks.prediction._pipelines import learning_trial, pipelined

SEED = 0
OVERSAMPLE = 3
PIPELINES = 6


@dataclass(frozen=True)
class Candidate:
    """A strategy and its predicted costs."""

    label: str
    strategy: Strategy
    costs: Costs


def candidates(
    graph: LogicalGraph, cluster: Cluster, calibration: Calibration, batch: int, count: int, lessons: int
) -> tuple[list[Candidate], list[Candidate]]:
    """``count`` different strategies sorted by predicted step time, and ``lessons`` others plus a pipelined one."""
    options = PlanOptions(global_batch=batch, micro_batch=batch, stages=1)
    plan = make_plan(graph, cluster, calibration, options)
    named = {"plan": plan.strategy}
    named.update((name, plan.baseline_strategy(name)) for name in plan.document["baseline_strategies"])
    sampled = sample_strategies(
        graph, cluster, OVERSAMPLE * count, global_batch=batch, micro_batch=batch, seed=SEED,
        weights=(0.0, 0.3, 1.0, 3.0), calibration=calibration,
    )  # fmt: skip

    def predicted(label: str, strategy: Strategy) -> Candidate:
        return Candidate(label, strategy, predict_costs(graph, strategy, cluster, calibration))

    found: dict[str, Candidate] = {}
    staged = pipelined(graph, cluster, calibration, batch, PIPELINES)
    for label, strategy in (*named.items(), *staged):
        found.setdefault(str(strategy.to_dict()), predicted(label, strategy))
    first = len(found)
    others = {str(strategy.to_dict()): strategy for strategy in sampled}
    rest = [predicted(f"sample {at}", others[key]) for at, key in enumerate(others) if key not in found]
    rest.sort(key=lambda candidate: candidate.costs.step_time_s)
    chosen = _spanning([candidate.costs.step_time_s for candidate in rest], count - first)
    for at in chosen:
        found[str(rest[at].strategy.to_dict())] = rest[at]
    left = [candidate for at, candidate in enumerate(rest) if at not in chosen]
    taught = [left[at] for at in _spread(len(left), lessons)]
    if lessons:
        taught += [predicted(*each) for each in learning_trial(graph, cluster, calibration, batch)]
    return sorted(found.values(), key=lambda candidate: candidate.costs.step_time_s), taught


def _spanning(seconds: list[float], count: int) -> list[int]:
    """``count`` different indices whose costs are evenly spaced on a log scale; each is the nearest one left."""
    places = np.linspace(np.log(seconds[0]), np.log(seconds[-1]), min(count, len(seconds)))
    left = dict(enumerate(np.log(seconds)))
    chosen = []
    for place in places.tolist():
        chosen.append(min(left, key=lambda at: float(abs(left[at] - place))))
        del left[chosen[-1]]
    return sorted(chosen)


def _spread(size: int, count: int) -> list[int]:
    """About ``count`` indices, evenly spaced from the first to the last."""
    return [int(at) for at in np.unique(np.linspace(0, size - 1, min(count, size)).round().astype(int))]
