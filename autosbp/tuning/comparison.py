"""Comparison of a plan with its baselines: strategies measured in turn by the same ranks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import TF32, planned_graph
from autosbp.launch.local import Launch, run_ranks
from autosbp.plan.plan import Plan, Strategy
from autosbp.tuning.trial_pool import TrialEffort, TrialPool
from autosbp.utils.json_io import check_integer

PLAN = "plan"
"""Name of the plan itself among its baselines."""


@dataclass(frozen=True, slots=True)
class MeasuredStrategy:
    """Measurements of one strategy in a comparison.

    Args:
        name: ``plan``, or that of a baseline.
        predicted_step_time_s: by the plan's cost model.
        times_s: step times of each round, of the slowest rank.
        ratio: median over rounds of the median step time by that of the plan in the same round.
        loss_difference: largest relative difference from the losses of one device.
        collectives_match: whether every rank issued what was predicted, in every round.
    """

    name: str
    predicted_step_time_s: float
    times_s: tuple[tuple[float, ...], ...]
    ratio: float
    loss_difference: float
    collectives_match: bool

    @property
    def step_time_s(self) -> float:
        """Median over all rounds."""
        return statistics.median(step for steps in self.times_s for step in steps)

    def to_dict(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self.__slots__}, "step_time_s": self.step_time_s}


def compare_strategies(
    plan: Plan,
    graph: LogicalGraph,
    names: Sequence[str] | None = None,
    *,
    rounds: int = 3,
    effort: TrialEffort | None = None,
    seed: int = 0,
    workdir: Path,
    launch: Launch = run_ranks,
    libraries: Sequence[str] = (),
    log: Callable[[str], None] = lambda _: None,
) -> list[MeasuredStrategy]:
    """Measure a plan and its baselines, the plan first, in one interleaved run.

    What disturbs the machine for longer than a round disturbs all strategies, so ratios within rounds are steadier than
    those of separate trials.

    Args:
        names: of baselines of the plan; by default all that fit in memory. Those that are the plan's own strategy, or
            each other's, are measured once.
        rounds: every strategy is built and measured once in each.
        effort: steps of each measurement; by default at most 10, and 5 s.
        workdir, launch, libraries, seed: see ``autosbp.api.run_trial``.

    Raises:
        InputError: an unknown name, or too few devices.
        TrialError: a rank failed or the time ran out; with the end of the log.
    """
    check_integer("rounds", rounds, 1, 1000)
    strategies = _strategies(plan, names)
    results: dict[str, list[Mapping[str, Any]]] = {name: [] for name in strategies}
    with TrialPool(
        planned_graph(graph, plan.document),
        plan.strategy.num_devices,
        workdir,
        device_kind=plan.cluster.device.kind,
        effort=effort or TrialEffort(steps=10, max_s=5.0, timeout_s=300.0),
        seed=seed,
        launch=launch,
        libraries=libraries,
        tf32=plan.precision == TF32,
    ) as pool:
        for at in range(rounds):
            names_in_turn = [*strategies][:: -1 if at % 2 else 1]  # none always comes after the same one
            for name in names_in_turn:
                log(f"round {at + 1} of {rounds}: {name}")
                results[name].append(pool.measure(strategies[name]))
    return [_summary(plan, name, each, results[PLAN]) for name, each in results.items()]


def _summary(
    plan: Plan, name: str, results: Sequence[Mapping[str, Any]], of_plan: Sequence[Mapping[str, Any]]
) -> MeasuredStrategy:
    costs = plan.document if name == PLAN else plan.document["baselines"][name]
    pairs = zip(results, of_plan, strict=True)
    return MeasuredStrategy(
        name,
        costs["step_time_s"],
        tuple(tuple(each["times_s"]) for each in results),
        statistics.median(own["step_time_s"] / base["step_time_s"] for own, base in pairs),
        max(each["loss_difference"] for each in results),
        all(each["collectives_match"] for each in results),
    )


def _strategies(plan: Plan, names: Sequence[str] | None) -> dict[str, Strategy]:
    """The plan's strategy, and those of its baselines that are not another's too."""
    entries, stored = plan.document["baselines"], plan.document.get("baseline_strategies", {})
    for name in names or ():
        if name not in stored:
            raise InputError("baseline", name, f"expected one of the plan's: {', '.join(stored) or 'it has none'}")
    found = {PLAN: plan.strategy}
    for name in [each for each in stored if entries[each]["feasible"]] if names is None else names:
        strategy = plan.baseline_strategy(name)
        if strategy not in found.values():
            found[name] = strategy
    return found
