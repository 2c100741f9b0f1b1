"""Summary of a tuning search: best strategy, best-so-far and hit-rate curves, and ranking accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autosbp.tuning.proposers import measured_s
from autosbp.tuning.ranking import ranking_accuracy
from autosbp.tuning.trial_store import Trial
from autosbp.tuning.tuner import CONFIRMED, baselines, fastest

PHASES = 5
"""Number of equal parts of a search, in order of time, for ranking accuracy (AutoDist, Figure 4)."""


def tuning_summary(trials: Sequence[Trial], stopped: str | None = None) -> dict[str, Any]:
    """Summary of a search as JSON values.

    ``best_so_far_s`` and ``hit_rate`` have an entry for each trial before the confirming ones: the fastest step time so
    far (None until a trial has succeeded), and the share of proposed strategies so far that beat the best baseline (None
    until one was proposed).

    Args:
        trials: trials of the search, oldest first.
        stopped: why the search ended; None while it runs.
    """
    first = [trial for trial in trials if trial.origin != CONFIRMED]
    limit, best, baseline = fastest(baselines(first)), fastest(trials), fastest(baselines(trials))
    return {
        "stopped": stopped,
        "num_trials": len(trials),
        "num_failed": sum(trial.step_time_s is None for trial in trials),
        "best": _shown(best, trials),
        "baseline": _shown(baseline, trials),
        "speedup": None if best is None or baseline is None else measured_s(baseline) / measured_s(best),
        "best_so_far_s": best_so_far(first),
        "hit_rate": hit_rate(first, math.inf if limit is None else measured_s(limit)),
        "ranking_accuracy": accuracy_by_phase(first),
        "trials": [trial_row(at, trial) for at, trial in enumerate(trials)],
    }


def trial_row(index: int, trial: Trial) -> dict[str, Any]:
    """One trial without its strategy."""
    return {
        "index": index,
        "origin": trial.origin,
        "strategy_id": trial.strategy_id,
        "step_time_s": trial.step_time_s,
        "predicted_step_time_s": trial.predicted["step_time_s"],
        "score": trial.score,
        "choices": None if trial.choices is None else trial.choices.to_dict(),
        "error": trial.error,
    }


def best_so_far(trials: Sequence[Trial]) -> list[float | None]:
    """Fastest step time in seconds after each trial; None until a trial has succeeded."""
    found, best = list[float | None](), math.inf
    for trial in trials:
        best = min(best, measured_s(trial))
        found.append(None if best == math.inf else best)
    return found


def hit_rate(trials: Sequence[Trial], baseline_s: float) -> list[float | None]:
    """Share of strategies proposed so far that are faster than ``baseline_s``, after each trial; None before the first."""
    found, hits, count = list[float | None](), 0, 0
    for trial in trials:
        if trial.choices is not None:
            count += 1
            hits += measured_s(trial) < baseline_s
        found.append(hits / count if count else None)
    return found


def accuracy_by_phase(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Ranking accuracy of the ranking model and of the cost model in each phase of a search.

    The ranking model is judged by the scores that trials had before they ran, so this is its accuracy on held-out data.
    """
    proposed = [trial for trial in trials if trial.choices is not None]
    size = -(-len(proposed) // PHASES)
    found = []
    for begin in range(0, len(proposed), max(size, 1)):
        part = proposed[begin : begin + size]
        seconds = [measured_s(trial) for trial in part]
        scores = [trial.score for trial in part if trial.score is not None]
        predicted = [-float(trial.predicted["step_time_s"]) for trial in part]
        found.append({
            "trials": len(part),
            "model": ranking_accuracy(scores, seconds) if len(scores) == len(part) else None,
            "cost_model": ranking_accuracy(predicted, seconds),
        })  # fmt: skip
    return found


def _shown(trial: Trial | None, trials: Sequence[Trial]) -> dict[str, Any] | None:
    """The trial's row, with the origin of the first trial of the same strategy."""
    if trial is None:
        return None
    first = next(each for each in trials if each.strategy_id == trial.strategy_id)
    return {**trial_row(trials.index(trial), trial), "origin": first.origin}
