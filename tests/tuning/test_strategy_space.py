"""Points of the space: valid strategies, equal for equal choices, with layouts that perturbations change."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from autosbp.api import PlanOptions, capture, load_cluster
from autosbp.executor.trial import check_strategy
from autosbp.tuning.sampler import Sampler
from autosbp.tuning.strategy_space import Choices, StrategySpace

POINT = Choices("1 stage, data 2, tensor 2", 0, "as_used", False, 25 * 2**20, "1f1b", True)


def test_sampled_strategies_fit_and_can_be_built(sampler: Sampler) -> None:
    found = sampler.sample(12, Random(1), set())
    assert len({each.strategy_id for each in found}) == 12
    for each in found:
        strategy, costs = each.candidate.strategy, each.candidate.costs
        check_strategy(sampler.space.graph, strategy)
        assert strategy.num_devices == 4 and strategy.global_batch == 8
        assert costs.memory_bytes_per_device <= sampler.space.limit_bytes
        assert sampler.space.costs(strategy) == costs
    assert {each.candidate.strategy.num_stages for each in found} > {1}


def test_a_choice_decides_what_it_names(space: StrategySpace) -> None:
    found = space.candidate(POINT)
    assert found is not None and found.strategy.gather == "step"
    use = space.candidate(replace(POINT, storage="use"))
    assert use is not None and use.strategy.gather == "use"
    small = space.candidate(replace(POINT, bucket_bytes=2**20))
    assert small is not None and small.strategy.bucket_bytes == 2**20
    halved = space.candidate(replace(POINT, micro_batch=1))
    assert halved is not None and halved.strategy.num_micro == 2 * found.strategy.num_micro
    piped = space.candidate(replace(POINT, grid="2 stages, data 2, tensor 1", schedule="gpipe"))
    assert piped is not None and piped.strategy.pipeline is not None
    assert piped.strategy.pipeline.schedule.name == "gpipe"


def test_perturbations_change_layouts(space: StrategySpace) -> None:
    plain = Choices("1 stage, n0:2 g0:2", 0, "as_used", False, 25 * 2**20, "1f1b", False)
    assert plain.grid in space.domains["grid"], space.domains["grid"]
    best = space.candidate(plain)
    others = [space.candidate(replace(plain, perturbations=(seed,))) for seed in range(6)]
    assert best is not None
    changed = [each for each in others if each is not None and each.strategy.signatures != best.strategy.signatures]
    assert len(changed) > 1
    assert all(each.costs.step_time_s > best.costs.step_time_s for each in changed)
    again = space.candidate(replace(plain, perturbations=(3,)))
    assert again == others[3]


def test_options_restrict_the_space(space: StrategySpace) -> None:
    options = PlanOptions(global_batch=8, stages=1, storage="use", bucket_bytes=2**20, data_parallel=4)
    narrow = StrategySpace(capture("zoo:mlp-small"), load_cluster("local:2x2"), None, options)
    assert narrow.domains["storage"] == ("use",) and narrow.domains["bucket_bytes"] == (2**20,)
    assert all(name.startswith("1 stage,") for name in narrow.domains["grid"])
    assert len(narrow.domains["grid"]) < len(space.domains["grid"])
