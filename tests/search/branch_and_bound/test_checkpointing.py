"""Plans that recompute: only where memory asks for it, as few blocks as fit, at no less than search charges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from autosbp.api import PlanOptions, load_cluster
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.recompute import checkpointing_segments, recomputable_blocks
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.errors import InfeasibleError, InputError
from autosbp.plan.plan import Plan
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.branch_and_bound.candidate import Candidate, CostedStrategy
from autosbp.search.branch_and_bound.checkpointing import StrategyCheckpointing
from autosbp.search.branch_and_bound.parallel_tasks import TASKS_PER_ROUND
from autosbp.search.branch_and_bound.strategy_coster import StrategyCoster
from autosbp.search.problem.pins import Pins
from autosbp.search.stages.layout_problems import LayoutProblems, PipelineStructure, SubproblemKey
from autosbp.utils.parallel import single_process
from tests.search.plans import graph_of, planned

pytestmark = pytest.mark.integration

ONE = {"cluster": "local:4", "stages": 1}


@pytest.fixture(scope="module")
def free() -> Plan:
    return planned(**ONE)


def problems_of(cluster: str = "local:4") -> LayoutProblems:
    there = load_cluster(cluster)
    return LayoutProblems(
        graph_of("gpt2-demo"), NetworkModel(there), ComputeModel(there.device), global_batch=16, optimizer="adamw",
        pins=Pins({}, {}, {}),
    )  # fmt: skip


def test_nothing_is_recomputed_where_memory_does_not_bind(free: Plan) -> None:
    assert free.strategy.recompute == ()
    assert free.document["strategy"] == planned(**ONE, recompute=0).document["strategy"]


def test_every_block_is_recomputed_on_request(free: Plan) -> None:
    every, pairs = planned(**ONE, recompute=1), planned(**ONE, recompute=2)
    assert (len(every.strategy.recompute), len(pairs.strategy.recompute)) == (4, 2)
    assert every.document["step_time_s"] > free.document["step_time_s"]
    assert every.document["memory_bytes_per_device"] < free.document["memory_bytes_per_device"]


@pytest.mark.parametrize("micro_batch", [4, 16])
def test_no_strategy_takes_less_than_search_charges_nor_much_more(micro_batch: int) -> None:
    problems = problems_of()
    there = load_cluster("local:4")
    layouts = problems.build(SubproblemKey(PipelineStructure(1, there.mesh()), micro_batch, "fastest", True), None)
    result = SEARCHERS["exact"](layouts.problem, SearchOptions())
    strategy = replace(
        problems.strategy(layouts, result.assignment), recompute=checkpointing_segments(problems.blocks, 1)
    )  # fmt: skip
    costs = evaluate(
        problems.bound(micro_batch), strategy, problems.boxing(layouts.key.view), problems.compute
    )  # fmt: skip
    assert 0.95 * costs.step_time_s < result.cost_s <= costs.step_time_s * (1 + 1e-9)


def test_as_few_blocks_are_recomputed_as_fit(free: Plan) -> None:
    graph = graph_of("gpt2-demo")
    bound = graph.bind(**dict.fromkeys(graph.symbols, free.strategy.micro_batch))
    problems, blocks = problems_of(), recomputable_blocks(bound)
    boxing = problems.boxing(free.strategy.mesh)

    def taken(kept: int) -> int:
        tried = replace(free.strategy, recompute=checkpointing_segments(blocks, 1, (), kept))
        return evaluate(bound, tried, boxing, problems.compute).memory_bytes_per_device

    sizes = [taken(kept) for kept in range(len(blocks) + 1)]
    assert sizes == sorted(sizes)
    for kept in range(1, len(blocks)):
        found = StrategyCheckpointing(problems, None, sizes[kept]).of(free.strategy)
        assert len(found.recompute) == len(blocks) - kept


def test_a_strategy_is_told_of_no_fewer_blocks_than_it_may_keep(free: Plan) -> None:
    graph = graph_of("gpt2-demo")
    bound = graph.bind(**dict.fromkeys(graph.symbols, free.strategy.micro_batch))
    problems, blocks = problems_of(), recomputable_blocks(bound)
    most = StrategyCheckpointing(problems, 1, 0)
    for share in (0.0, 0.3, 0.6, 0.9):
        least, whole = (most._bytes(each) for each in (most.of(free.strategy), free.strategy))
        limit, told = round(least + share * (whole - least)), list[float]()

        def pays(part: float, told: list[float] = told) -> bool:
            told.append(part)
            return True

        again = StrategyCheckpointing(problems, None, limit)
        found = again.apply_if_useful(free.strategy, pays)
        assert found is not None and found == again.of(free.strategy)
        assert len(told) == 1 and 1 >= told[0] >= 1 - len(found.recompute) / len(blocks)
        assert again.apply_if_useful(free.strategy, lambda _: False) is None
    # Where nothing fits there is nothing to tell.
    assert StrategyCheckpointing(problems, None, 1).apply_if_useful(free.strategy, lambda _: False) is not None


def test_an_infeasible_plan_names_the_option_that_forbids_recomputation() -> None:
    limit = 21_000_000
    with pytest.raises(InfeasibleError) as error:
        planned(**ONE, recompute=0, memory_limit_bytes=limit, time_limit_s=4.0)
    assert "recompute=0" in error.value.conflict
    found = planned(**ONE, memory_limit_bytes=limit, time_limit_s=4.0)
    assert found.strategy.recompute and found.document["memory_bytes_per_device"] <= limit


def test_options_are_checked_and_read_back() -> None:
    for bad in (-1, 1.5, "all", True):
        with pytest.raises(InputError, match="recompute"):
            PlanOptions(recompute=bad)  # type: ignore[arg-type]
    options = PlanOptions(recompute=2)
    assert PlanOptions.from_dict(options.to_dict()) == options
    assert "recompute" not in PlanOptions().to_dict()
    with pytest.raises(InfeasibleError, match="no repeated blocks"):
        planned("moe-small", "local:4", recompute=1)


@pytest.mark.long
def test_the_first_feasible_candidate_cuts_off_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing fits without recomputation, and there are no baselines to begin with: Llama 70B on 2 x 8 A100 took three
    times as long as with them, as spaces were costed whose estimates one that fits, made uneven, rules out."""
    known: list[bool] = []
    costed = StrategyCoster.fitting

    def fitting(self: StrategyCoster, space: SubproblemKey, candidates: Iterable[CostedStrategy]) -> Candidate | None:
        if space.again:
            known.append(self.incumbent.best is not None)
        return costed(self, space, candidates)

    monkeypatch.setattr(StrategyCoster, "fitting", fitting)
    with single_process():
        found = planned("gpt2", "local:4", memory_limit_bytes=1_100_000_000)
    assert found.strategy.recompute and found.document["memory_bytes_per_device"] <= 1_100_000_000
    assert known.count(False) <= TASKS_PER_ROUND < len(known)
