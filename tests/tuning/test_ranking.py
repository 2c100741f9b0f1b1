"""Ranking: a model that starts as the cost model and learns from trials, and the choice of candidates by its scores."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from autosbp.tuning.candidate_filter import diverse, elite, fidelity_level, scored
from autosbp.tuning.features import FeatureExtractor
from autosbp.tuning.ranking import ranking_accuracy
from autosbp.tuning.ranking_model import RankingModel
from autosbp.tuning.sampler import Proposal, Sampler


@pytest.fixture(scope="module")
def proposals(sampler: Sampler) -> list[Proposal]:
    return sampler.sample(60, Random(7), set())


def test_the_model_starts_as_the_cost_model_and_learns_what_that_has_wrong(
    sampler: Sampler, proposals: list[Proposal]
) -> None:
    extractor = FeatureExtractor(sampler.space.graph)
    features = [extractor.extract(each.candidate.strategy, each.candidate.costs.to_dict()) for each in proposals]
    predicted = [each.candidate.costs.step_time_s for each in proposals]
    model = RankingModel(features, seed=3)
    assert ranking_accuracy(model.scores(features), predicted) == 1.0
    # Here each doubling of microbatches costs 40 % more than the cost model says.
    actual = [
        s * 1.4 ** math.log2(each.candidate.strategy.num_micro) for s, each in zip(predicted, proposals, strict=True)
    ]
    train, test = slice(0, 40), slice(40, None)
    before = ranking_accuracy(model.scores(features[test]), actual[test])
    other = model.copy()
    model.train(features[train], actual[train])
    after = ranking_accuracy(model.scores(features[test]), actual[test])
    assert before is not None and after is not None and after > 0.9 > before
    other.train(features[train], actual[train])
    assert other.scores(features) == model.scores(features)


def test_accuracy_counts_pairs_that_differ() -> None:
    assert ranking_accuracy([3, 2, 1], [1.0, 2.0, 3.0]) == 1.0
    assert ranking_accuracy([1, 2, 3], [1.0, 2.0, math.inf]) == 0.0
    assert ranking_accuracy([3, 1, 2], [1.0, 2.0, 3.0]) == pytest.approx(2 / 3)
    assert ranking_accuracy([1, 2], [1.0, 1.01]) is None


def test_fidelity_is_the_highest_score_below_which_ranks_are_right() -> None:
    scores = [float(at) for at in range(12)]
    right = [20.0 - at for at in range(12)]
    assert fidelity_level(scores, right, scores) == 11.0
    upper_wrong = right[:6] + [30.0 + at for at in range(6)]
    assert fidelity_level(scores, upper_wrong, [10 * score for score in scores]) == 50.0
    assert fidelity_level(scores, right[::-1], scores) == -math.inf
    assert fidelity_level(scores[:3], right[:3], scores[:3]) == -math.inf


def test_the_filter_keeps_scores_above_the_level_and_at_least_some(proposals: list[Proposal]) -> None:
    given = scored(proposals[:10], [float(at) for at in range(10)])
    assert [each.score for each in elite(given, 6.5, 2)] == [9.0, 8.0, 7.0]
    assert [each.score for each in elite(given, 20.0, 2)] == [9.0, 8.0]


def test_diverse_candidates_differ_in_their_choices(proposals: list[Proposal]) -> None:
    first, second, third = proposals[:3]
    assert first.choices is not None
    alike = replace(second, choices=replace(first.choices, perturbations=(7,)))
    other = replace(third, choices=replace(first.choices, grid="other", storage="other"))
    chosen = diverse(scored([first, alike, other], [3.0, 2.9, 2.5]), 2)
    assert [each.strategy_id for each in chosen] == [first.strategy_id, other.strategy_id]
    far_behind = scored([first, alike, other], [3.0, 2.9, 0.5])
    assert [each.strategy_id for each in diverse(far_behind, 2)] == [first.strategy_id, alike.strategy_id]
