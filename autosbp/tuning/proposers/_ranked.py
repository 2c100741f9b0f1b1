"""Algorithm 1 of AutoDist: sample, rank with a learned model, filter by its fidelity, and select for diversity."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from autosbp.plan.plan import Strategy
from autosbp.tuning.candidate_filter import diverse, elite, fidelity_level, scored
from autosbp.tuning.features import FeatureExtractor, StrategyFeatures
from autosbp.tuning.proposers._base import known_strategies, measured_s
from autosbp.tuning.ranking_model import RankingModel
from autosbp.tuning.sampler import Proposal, Sampler
from autosbp.tuning.strategy_space import Choices
from autosbp.tuning.trial_store import Trial

SAMPLES = 8
"""Number of sampled strategies for each proposed one."""
EXAMPLES = 64
"""Number of sampled strategies at which corrections of the cost model's ranking are penalized."""
MUTATED_SHARE = 0.6
"""Share of samples that mutate one of the fastest trials."""
PARENTS = 8
RECENT = 24
"""Number of latest trials from which the fidelity of scores is estimated."""
EXPLORED_SHARE = 1 / 8
"""Share of proposals drawn at random from all samples (epsilon-greedy, as in AutoTVM)."""
ELITE = 2
"""Number of best candidates for each proposed one that the fidelity filter always keeps."""


class RankedProposer:
    """Proposes samples of the guided sampler, ranked by a model that learns from trials.

    In each round, training starts from the weights that rank like the cost model and uses all trials so far, so that a
    resumed search proposes the same strategies as an uninterrupted one.
    """

    def __init__(self, sampler: Sampler, seed: int = 0) -> None:
        self.sampler, self.seed = sampler, seed
        self._extractor = FeatureExtractor(sampler.space.graph)
        self._features: dict[str, StrategyFeatures] = {}
        self._model: RankingModel | None = None

    def propose(self, count: int, trials: Sequence[Trial]) -> list[Proposal]:
        rng = Random(f"ranked {self.seed} {len(trials)}")
        if self._model is None:
            self._model = self._cost_model()
        if self._model is None:
            return []
        model = self._model.copy()
        model.train([self._of_trial(trial) for trial in trials], [measured_s(trial) for trial in trials])
        parents = [trial.choices for trial in sorted(trials, key=measured_s) if trial.choices and trial.step_time_s]
        known = known_strategies(trials)
        sampled = self.sampler.sample(SAMPLES * count, rng, known, _first(parents), MUTATED_SHARE)
        sampled = scored(sampled, model.scores([self._of_proposal(each) for each in sampled]))
        num_explored = min(round(EXPLORED_SHARE * count), max(0, len(sampled) - 1))
        explored = rng.sample(sampled, num_explored)
        rest = [each for each in sampled if each not in explored]
        kept = elite(rest, self._level(model, trials), ELITE * count)
        return [*diverse(kept, count - num_explored), *explored]

    def _level(self, model: RankingModel, trials: Sequence[Trial]) -> float:
        recent = [(trial.score, trial) for trial in trials if trial.score is not None][-RECENT:]
        current = model.scores([self._of_trial(trial) for _, trial in recent])
        return fidelity_level([score for score, _ in recent], [measured_s(trial) for _, trial in recent], current)

    def _cost_model(self) -> RankingModel | None:
        """An untrained model, which ranks like the cost model; None if the space has no feasible strategy."""
        sampled = self.sampler.sample(EXAMPLES, Random(f"examples {self.seed}"), set())
        return RankingModel([self._of_proposal(each) for each in sampled], self.seed) if sampled else None

    def _of_trial(self, trial: Trial) -> StrategyFeatures:
        key = trial.strategy_id
        if key not in self._features:
            self._features[key] = self._extractor.extract(Strategy.from_dict(trial.strategy), trial.predicted)
        return self._features[key]

    def _of_proposal(self, proposal: Proposal) -> StrategyFeatures:
        key = proposal.strategy_id
        if key not in self._features:
            candidate = proposal.candidate
            self._features[key] = self._extractor.extract(candidate.strategy, candidate.costs.to_dict())
        return self._features[key]


def _first(parents: Sequence[Choices]) -> list[Choices]:
    """The first ``PARENTS`` distinct points."""
    return list(dict.fromkeys(parents))[:PARENTS]
