"""``tune``: find the fastest strategy by trials (AutoDist, Algorithm 1).

The plan, its baselines and the synchronization builders are measured first, so the result is never slower than these.
Then, in rounds, a proposer chooses strategies and learns from their trials. The last trials measure the fastest
strategies again, with more steps, because the fastest of many measurements is partly luck.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.errors import AutosbpError, InputError, TrialError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import TF32, captured_hash, require_executor
from autosbp.launch.local import Launch, run_ranks
from autosbp.plan.plan import Plan, Strategy
from autosbp.search.branch_and_bound.candidate import Candidate
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import make_plan
from autosbp.search.sync_builders import BUILDERS
from autosbp.tuning.options import TuneOptions
from autosbp.tuning.proposers import PROPOSERS, measured_s
from autosbp.tuning.sampler import Proposal, Sampler
from autosbp.tuning.strategy_space import StrategySpace
from autosbp.tuning.sync_choices import synchronized
from autosbp.tuning.trial_pool import TrialEffort, TrialPool, write_atomically
from autosbp.tuning.trial_store import Trial, TrialStore
from autosbp.utils.json_io import read_file

ROUND = 8
"""Number of strategies that the proposer chooses at a time."""
PLAN, CONFIRMED, DATA_PARALLEL = "plan", "confirmed", "data_parallel"
FIXED_SHARE = 0.4
"""Share of the budget for the plan, its baselines, and synchronization builders over data parallelism."""
NUM_CONFIRMED = 4
"""Number of confirming trials: the best baseline and the fastest other strategies."""
MAX_CONFIRMED_SHARE = 0.2
"""Maximum share of the budget for confirming trials."""
CONFIRMED_EFFORT = 3
"""Steps of a confirming trial, relative to other trials."""
MAX_LOSS_DIFFERENCE = 0.05
"""Relative difference from the losses of one device above which a trial fails; rounding causes far less in any precision."""
PLAN_FILE = "plan.json"
SEARCHER = "tuning"
"""Value of ``searcher`` in a plan whose strategy comes from tuning."""


@dataclass(frozen=True, slots=True)
class TuningState:
    """Progress of a search.

    Args:
        num_trials: number of trials so far.
        budget: maximum number of trials.
        best_s: fastest measured step time in seconds; infinite if no trial has succeeded.
        baseline_s: fastest measured step time of a baseline in seconds; infinite if none has succeeded.
    """

    num_trials: int
    budget: int
    best_s: float
    baseline_s: float


@dataclass(frozen=True, slots=True)
class TuningResult:
    """Result of tuning.

    Args:
        plan: the fastest strategy as a plan; the plan without trials if that is the fastest.
        trials: all trials, oldest first.
        best: trial of the fastest strategy (see ``fastest``); None if all failed.
        baseline: trial of the fastest baseline; None if all failed.
        stopped: why tuning ended: ``trials``, ``minutes``, ``bound``, ``no new strategy`` or ``cancelled``.
    """

    plan: Plan
    trials: Sequence[Trial]
    best: Trial | None
    baseline: Trial | None
    stopped: str


class Tuner:
    """One search by trials, see ``tune``.

    Args:
        plan: the plan without trials.
        space: the space of strategies.
        store: the trials so far.
        pool: runs the trials.
        asked: budgets and proposer.
        gap_tolerance: relative gap to the plan's lower bound at which the search ends.
    """

    def __init__(
        self,
        plan: Plan,
        space: StrategySpace,
        store: TrialStore,
        pool: TrialPool,
        asked: TuneOptions,
        gap_tolerance: float,
    ) -> None:
        self.plan, self.space, self.store, self.pool = plan, space, store, pool
        self.asked, self.gap_tolerance = asked, gap_tolerance
        self.proposer = PROPOSERS[asked.proposer](Sampler(space), asked.seed)
        self.began = time.monotonic()
        self.earlier_s = sum(float((trial.measured or {}).get("wall_s", 0.0)) for trial in store.trials)

    def run(self, progress: Callable[[TuningState], bool]) -> str:
        """Measure strategies until a budget is used up; returns the reason to stop."""
        reserved = min(NUM_CONFIRMED, int(MAX_CONFIRMED_SHARE * self.asked.trials))
        for proposal in self._proposals():
            stopped = self._stop_reason(self.asked.trials - reserved)
            if stopped is None and not progress(self._state()):
                stopped = "cancelled"
            if stopped is not None:
                break
            self._try(proposal)
        else:
            stopped = "no new strategy"
        if stopped != "cancelled":
            self._confirm(reserved)
            progress(self._state())
        return stopped

    def _proposals(self) -> Iterator[Proposal]:
        """Fixed strategies that no earlier run has measured, then those of the proposer."""
        tried = {trial.strategy_id for trial in self.store.trials}
        for proposal in self._fixed():
            if proposal.strategy_id not in tried:
                tried.add(proposal.strategy_id)
                yield proposal
        while found := self.proposer.propose(ROUND, self.store.trials):
            yield from found

    def _fixed(self) -> Iterator[Proposal]:
        """The plan, its baselines, and synchronization builders over data parallelism."""
        named = {PLAN: self.plan.strategy}
        named |= {name: self.plan.baseline_strategy(name) for name in self.plan.document["baseline_strategies"]}
        for name, strategy in named.items():
            yield Proposal(name, Candidate(strategy, self.space.costs(strategy)))
        data_parallel, room = named.get(DATA_PARALLEL), int(FIXED_SHARE * self.asked.trials) - len(named)
        if data_parallel is not None:
            for name in [*BUILDERS][: max(0, room)]:
                strategy = synchronized(self.space.bound(data_parallel), data_parallel, self.space.cluster, name)
                yield Proposal(f"{DATA_PARALLEL} {name}", Candidate(strategy, self.space.costs(strategy)))

    def _stop_reason(self, trials: int) -> str | None:
        bound_s, best = self.plan.document["lower_bound_s"], fastest(self.store.trials)
        if len(self.store.trials) >= trials:
            return "trials"
        if self.asked.minutes is not None and self._spent_s() >= 60 * self.asked.minutes:
            return "minutes"
        if best is not None and bound_s is not None and measured_s(best) <= bound_s * (1 + self.gap_tolerance):
            return "bound"
        return None

    def _spent_s(self) -> float:
        return self.earlier_s + time.monotonic() - self.began

    def _state(self) -> TuningState:
        best, baseline = fastest(self.store.trials), fastest(baselines(self.store.trials))
        seconds = [float("inf") if each is None else measured_s(each) for each in (best, baseline)]
        return TuningState(len(self.store.trials), self.asked.trials, *seconds)

    def _try(self, proposal: Proposal) -> None:
        strategy = proposal.candidate.strategy
        trial = Trial(
            proposal.origin, strategy.to_dict(), proposal.candidate.costs.to_dict(), proposal.choices, proposal.score
        )
        self.store.append(self._measured(trial, strategy))

    def _measured(self, trial: Trial, strategy: Strategy) -> Trial:
        """The trial with its measurement, or with its error if it failed."""
        began = time.monotonic()
        try:
            result = self.pool.measure(strategy)
        except AutosbpError as error:
            if self.pool.cancelled():
                raise TrialError("cancelled") from error
            return replace(trial, error=str(error), measured={"wall_s": time.monotonic() - began})
        measured = {**result, "wall_s": time.monotonic() - began}
        if result["loss_difference"] > MAX_LOSS_DIFFERENCE and not result["loss_spread"]:
            text = f"losses differ from one device's by {result['loss_difference']:.2g}"
            return replace(trial, error=text, measured=measured)
        return replace(trial, step_time_s=result["step_time_s"], measured=measured)

    def _confirm(self, count: int) -> None:
        """Measure the fastest strategies and the fastest baseline again, with more steps."""
        done = {trial.strategy_id for trial in self.store.trials if trial.origin == CONFIRMED}
        first = [trial for trial in self.store.trials if trial.origin != CONFIRMED and trial.step_time_s is not None]
        ranked = sorted(first, key=measured_s)
        best = fastest(baselines(first))
        chosen = list(dict.fromkeys(trial.strategy_id for trial in ([best] if best else []) + ranked))[:count]
        effort, self.pool.effort = self.pool.effort, confirming(self.pool.effort)
        for trial in ranked:
            if trial.strategy_id not in chosen or trial.strategy_id in done:
                continue
            again = replace(trial, origin=CONFIRMED, score=None, step_time_s=None, measured=None)
            self.store.append(self._measured(again, Strategy.from_dict(trial.strategy)))
        self.pool.effort = effort


def confirming(effort: TrialEffort) -> TrialEffort:
    """Effort of a confirming trial."""
    return replace(effort, steps=CONFIRMED_EFFORT * effort.steps, max_s=CONFIRMED_EFFORT * effort.max_s)


def baselines(trials: Sequence[Trial]) -> list[Trial]:
    """Trials of baselines: strategies that are neither the plan's nor a proposer's."""
    names = {trial.strategy_id for trial in trials if trial.choices is None and trial.origin not in (PLAN, CONFIRMED)}
    return [trial for trial in trials if trial.strategy_id in names]


def fastest(trials: Sequence[Trial]) -> Trial | None:
    """The fastest confirming trial, or the fastest trial if none is confirming; None if all failed."""
    measured = [trial for trial in trials if trial.step_time_s is not None]
    confirmed = [trial for trial in measured if trial.origin == CONFIRMED]
    return min(confirmed or measured, key=measured_s, default=None)


def tune(
    graph: LogicalGraph,
    cluster: Cluster,
    folder: Path,
    calibration: Calibration | None = None,
    options: PlanOptions | None = None,
    asked: TuneOptions | None = None,
    *,
    launch: Launch = run_ranks,
    libraries: Sequence[str] = (),
    progress: Callable[[TuningState], bool] = lambda _: True,
    cancelled: Callable[[], bool] = lambda: False,
) -> TuningResult:
    """Find the fastest strategy for training ``graph`` on ``cluster`` by trials on real ranks.

    Args:
        graph: the captured graph, with a symbolic batch.
        cluster: the cluster; every device gets one rank.
        folder: folder for ``trials.jsonl``, ``plan.json`` (the plan without trials) and logs of ranks. If it has an
            earlier run of the same search, that run is resumed.
        calibration: a calibration of the cluster, or None for costs from its description.
        options: options of the plan, which also constrain the space.
        asked: budgets, proposer, and effort of each trial.
        launch, libraries: see ``run_trial``.
        progress: called before each trial; returning False ends the search.
        cancelled: polled many times a second during a trial; returning True ends the trial and the search.

    Raises:
        InputError: the cluster has groups of unlike devices, ``folder`` has another search, or ``make_plan`` raises it.
        InfeasibleError: no strategy satisfies the options (see ``make_plan``).
        UnsupportedError: the executor does not train in the precision.
    """
    options, asked = options or PlanOptions(), asked or TuneOptions()
    if cluster.groups:
        raise InputError("cluster", cluster.name, "expected equal devices: groups of unlike ones are not tuned")
    options = options.on(cluster)
    require_executor(options.precision)
    about = {
        "model": graph.name, "graph_hash": captured_hash(graph), "cluster_hash": cluster.cluster_hash,
        "calibration_id": calibration.calibration_id if calibration else None,
        "options": options.to_dict(), "tuning": asked.resumable(),
    }  # fmt: skip
    with TrialStore(folder, about) as store:
        plan = _plan(graph, cluster, calibration, options, folder)
        space = StrategySpace(graph, cluster, calibration, options)
        pool = TrialPool(
            space.graph, cluster.num_devices, folder, device_kind=cluster.device.kind, effort=asked.effort,
            seed=asked.seed, launch=launch, libraries=libraries, tf32=options.precision == TF32,
            deterministic=options.deterministic, cancelled=cancelled,
        )  # fmt: skip
        with pool:
            tuner = Tuner(plan, space, store, pool, asked, options.gap_tolerance)
            try:
                stopped = tuner.run(progress)
            except TrialError:
                if not cancelled():
                    raise
                stopped = "cancelled"
        return result_of(plan, store.trials, stopped)


def result_of(plan: Plan, trials: Sequence[Trial], stopped: str) -> TuningResult:
    """Result of a search with these trials; ``plan`` is the plan without trials."""
    best, baseline = fastest(trials), fastest(baselines(trials))
    return TuningResult(plan if best is None else as_plan(plan, best), tuple(trials), best, baseline, stopped)


def as_plan(plan: Plan, trial: Trial) -> Plan:
    """The trial's strategy as a plan; ``plan`` itself if it has the same strategy."""
    if trial.strategy == plan.document["strategy"]:
        return plan
    return plan.with_strategy(Strategy.from_dict(trial.strategy), trial.predicted, {"searcher": SEARCHER})


def fastest_plans(result: TuningResult, count: int) -> list[Plan]:
    """The ``count`` fastest distinct strategies as plans, beginning with ``result.plan``."""
    ranked = sorted((trial for trial in result.trials if trial.step_time_s is not None), key=measured_s)
    different: dict[str, Trial] = {}
    for trial in [*([result.best] if result.best else []), *ranked]:
        different.setdefault(trial.strategy_id, trial)
    return [as_plan(result.plan, trial) for trial in [*different.values()][:count]]


def _plan(
    graph: LogicalGraph, cluster: Cluster, calibration: Calibration | None, options: PlanOptions, folder: Path
) -> Plan:
    """The plan without trials, read from ``folder`` if an earlier run has stored it."""
    path = folder / PLAN_FILE
    if path.exists():
        return Plan.from_dict(read_file(path))
    plan = make_plan(graph, cluster, calibration, options)
    write_atomically(path, plan.to_dict())
    return plan
