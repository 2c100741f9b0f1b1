"""Ranking accuracy on the trials of another search, by the number of training trials (AutoDist, Figure 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

from autosbp.plan.plan import Strategy
from autosbp.tuning.features import FeatureExtractor, StrategyFeatures
from autosbp.tuning.ranking import ranking_accuracy
from autosbp.tuning.ranking_model import RankingModel
from autosbp.tuning.sampler import Sampler
from autosbp.tuning.strategy_space import StrategySpace
from autosbp.tuning.trial_store import Trial

PHASES, BUCKETS = 5, 4
NUM_SAMPLES = 64


def accuracy_by_trials(space: StrategySpace, seen: Sequence[Trial], held_out: Sequence[Trial]) -> list[dict[str, Any]]:
    """Accuracy on ``held_out`` after training on each fifth of ``seen``: overall, and by bucket of speed, fastest last.

    The first entry is the cost model's ranking, before any trial. Strategies in ``seen`` do not count as held out.
    """
    known = {trial.strategy_id for trial in seen}
    tests = [trial for trial in held_out if trial.choices is not None and trial.strategy_id not in known]
    tests = [trial for trial in tests if trial.step_time_s is not None]
    extractor = FeatureExtractor(space.graph)

    def features(trials: Sequence[Trial]) -> list[StrategyFeatures]:
        return [extractor.extract(Strategy.from_dict(trial.strategy), trial.predicted) for trial in trials]

    sampled = Sampler(space).sample(NUM_SAMPLES, Random("accuracy"), set())
    examples = [extractor.extract(each.candidate.strategy, each.candidate.costs.to_dict()) for each in sampled]
    start = RankingModel(examples)
    seen_features, test_features = features(seen), features(tests)
    rows = []
    for phase in range(PHASES + 1):
        count = round(len(seen) * phase / PHASES)
        model = start.copy()
        model.train(seen_features[:count], [trial.step_time_s or math.inf for trial in seen[:count]])
        rows.append({"trials": count, **_accuracies(model.scores(test_features), tests)})
    return rows


def _accuracies(scores: Sequence[float], tests: Sequence[Trial]) -> dict[str, Any]:
    order = sorted(range(len(tests)), key=lambda at: -(tests[at].step_time_s or 0.0))
    size = -(-len(order) // BUCKETS)
    buckets = [order[begin : begin + size] for begin in range(0, len(order), size)]

    def accuracy(chosen: Sequence[int]) -> float | None:
        return ranking_accuracy([scores[at] for at in chosen], [tests[at].step_time_s or math.inf for at in chosen])

    return {"accuracy": accuracy(order), "buckets": [accuracy(each) for each in buckets]}
