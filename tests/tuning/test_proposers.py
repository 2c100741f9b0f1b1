"""The contract of proposers, and that the ranked one uses its trials."""

from __future__ import annotations

import math

import pytest

from autosbp.tuning.proposers import PROPOSERS
from autosbp.tuning.sampler import Proposal, Sampler
from autosbp.tuning.trial_store import Trial


def tried(proposal: Proposal, fails: bool = False) -> Trial:
    """A trial on a machine where each doubling of microbatches costs 40 % more than predicted."""
    strategy, costs = proposal.candidate.strategy, proposal.candidate.costs
    seconds = costs.step_time_s * 1.4 ** math.log2(strategy.num_micro)
    return Trial(
        proposal.origin, strategy.to_dict(), costs.to_dict(), proposal.choices, proposal.score,
        None if fails else seconds, "a rank failed" if fails else None,
    )  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.parametrize("name", PROPOSERS)
def test_proposals_are_new_and_follow_from_the_history(name: str, sampler: Sampler) -> None:
    proposer, trials = PROPOSERS[name](sampler, 5), list[Trial]()
    for at in range(2):
        found = proposer.propose(5, trials)
        assert len(found) == 5
        again = PROPOSERS[name](sampler, 5).propose(5, trials)
        assert [each.strategy_id for each in again] == [each.strategy_id for each in found]
        trials += [tried(each, fails=at == i) for i, each in enumerate(found)]
    assert len({trial.strategy_id for trial in trials}) == len(trials)


def test_the_ranked_proposer_finds_faster_strategies_than_random_sampling(sampler: Sampler) -> None:
    means = {}
    for name in ("ranked", "random"):
        proposer, trials = PROPOSERS[name](sampler, 1), list[Trial]()
        for _ in range(3):
            trials += [tried(each) for each in proposer.propose(8, trials)]
        means[name] = sum(trial.step_time_s or 0.0 for trial in trials[8:]) / len(trials[8:])
    assert means["ranked"] < 0.8 * means["random"]
