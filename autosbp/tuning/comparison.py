"""Measured comparison of a plan with its baselines: interleaved trials on the same ranks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import TF32, planned_graph, require_executor
from autosbp.launch.local import Launch, run_ranks
from autosbp.plan.plan import Plan, Strategy
from autosbp.tuning.trial_pool import TrialEffort, TrialPool
from autosbp.utils.json_io import check_integer

PLAN = "plan"
"""Name of the plan's own strategy in a comparison."""


@dataclass(frozen=True, slots=True)
class MeasuredStrategy:
    """Measurements of one strategy in a comparison.

    Args:
        name: ``plan``, or the name of a baseline.
        predicted_step_time_s: step time predicted by the plan's cost model.
        times_s: step times of each round; each is the time of the slowest rank.
        ratio: step time relative to the plan's: the ratio of the medians in each round, and the median of that over
            rounds.
        loss_difference: largest relative difference from the losses of one device.
        collectives_match: whether every rank issued the predicted collectives in every round.
    """

    name: str
    predicted_step_time_s: float
    times_s: tuple[tuple[float, ...], ...]
    ratio: float
    loss_difference: float
    collectives_match: bool

    @property
    def step_time_s(self) -> float:
        """Median step time over all rounds."""
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
    """Measure a plan and its baselines in one interleaved run.

    A disturbance of the machine that lasts longer than a round affects all strategies alike, so ratios within rounds
    vary less than ratios of separate trials.

    Args:
        plan: the plan with its baselines.
        graph: the plan's graph, as captured.
        names: names of the baselines to measure; by default all that fit in memory. A baseline that equals the plan's
            strategy or another baseline is not measured again.
        rounds: number of rounds; each builds and measures every strategy once.
        effort: steps of each measurement; by default at most 10 steps and 5 s.
        log: called with one line of progress before each measurement.
        workdir, launch, libraries, seed: see ``autosbp.api.run_trial``.

    Returns:
        One entry for each strategy, the plan's first.

    Raises:
        InputError: a name is unknown, or there are too few devices.
        UnsupportedError: the executor does not train in the plan's precision.
        TrialError: a rank failed or timed out; the message has the end of the log.
    """
    check_integer("rounds", rounds, 1, 1000)
    require_executor(plan.precision)
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
            order = [*strategies][:: -1 if at % 2 else 1]  # so that no strategy always follows the same one
            for name in order:
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
    """The plan's strategy and its distinct baselines, by name."""
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
