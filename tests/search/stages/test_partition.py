"""Cuts against enumeration: the slowest chunk is as quick as can be, with as little sent as that allows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest

import autosbp.search.stages.partition as cuts_module
from autosbp.api import load_cluster
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.p2p_cost import LinkModel
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.problem.pins import Pins
from autosbp.search.stages.layout_problems import LayoutProblems, PipelineStructure, SubproblemKey
from autosbp.search.stages.partition import NEAR_EVEN, CutPoints, StagePartitioner, StageProfiles
from autosbp.search.stages.schedule_candidates import pipelined_strategies
from tests.search.plans import graph_of

PER_BYTE = 0.05


def made(rng: np.random.Generator, stages: int) -> CutPoints:
    """Ops of made-up lengths, some of which take nothing; at times one that is held to a stage, and stages that are unlike."""
    count = int(rng.integers(3, 12))
    own = rng.choice([0.0, 0.3, 1.0, 2.0, 7.0], count) * (rng.random(count) if rng.random() < 0.5 else 1.0)
    before, names = np.concatenate([[0.0], np.cumsum(own)]), tuple(f"op{at}" for at in range(count))
    held = ((int(rng.integers(count)), int(rng.integers(stages))),) if rng.random() < 0.3 else ()
    pace = None
    if rng.random() < 0.4:
        times = rng.choice([0.5, 1.0, 2.0], stages)
        limits = tuple(int(each) for each in rng.integers(1, 2 * count, stages)) if rng.random() < 0.5 else None
        pace = StageProfiles(
            tuple(before[1:count] * each for each in times), tuple(float(before[-1] * each) for each in times),
            np.arange(1.0, count), float(count), limits,
        )  # fmt: skip
    crossing = rng.choice([1.0, 2.0, 5.0], count - 1)
    return CutPoints(names[1:], before[1:count], crossing, float(before[-1]), tuple(range(1, count)), held, names, pace)


def slowest_s(places: CutPoints, cuts: Sequence[int], stages: int) -> float:
    """Of chunks that begin at these places, messages included; infinite where a stage has no room, or another one's op."""
    ends, sent = [0, *(at + 1 for at in cuts), len(places.program)], PER_BYTE * places.crossing_bytes
    found = 0.0
    for chunk, (start, end) in enumerate(zip(ends, ends[1:], strict=False)):
        stage, pace = chunk % stages, places.stage_profiles
        before, total = (
            (places.before_s, places.total_s) if pace is None else (pace.before_s[stage], pace.total_s[stage])
        )
        sums = [0.0, *before.tolist(), total]
        messages = (sent[start - 1] if start else 0.0) + (sent[end - 1] if end < len(places.program) else 0.0)
        others = any(start <= op < end and own != stage for op, own in places.held)
        room = np.inf if pace is None or pace.limits is None else pace.limits[stage] * stages / (len(cuts) + 1)
        found = max(found, np.inf if others or end - start > room else sums[end] - sums[start] + messages)
    return found


@pytest.mark.parametrize("seed", range(200))
def test_cuts_are_the_best_of_all_over_as_few_bytes_as_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stages = int(rng.integers(1, 4))
    places = made(rng, stages)
    cutter, totals = (
        StagePartitioner(places, PER_BYTE, stages),
        (places.total_s,) if places.stage_profiles is None else places.stage_profiles.total_s,
    )
    for chunks in (stages * virtual for virtual in (2, 1, 3)):
        levels = places.levels(chunks - 1)
        best = {
            level: min(
                slowest_s(places, cuts, stages)
                for cuts in combinations(np.flatnonzero(places.crossing_bytes <= level).tolist(), chunks - 1)
            )
            for level in levels
        }
        found = cutter.cut(chunks)
        if not levels or best[levels[-1]] == np.inf:
            assert found is None
            continue
        enough = NEAR_EVEN / sum(1 / totals[at % len(totals)] for at in range(chunks)) if min(totals) else 0.0
        level = next(each for each in levels if best[each] <= max(enough, best[levels[-1]]) + 1e-12)
        assert found is not None and len(set(found)) == chunks - 1
        at = [places.names.index(name) for name in found]
        assert slowest_s(places, at, stages) == pytest.approx(best[level], rel=1e-12)
        assert places.crossing_bytes[at].max(initial=0.0) <= level


@pytest.mark.parametrize(("model", "stages"), [("moe-small", 2), ("resnet50-small", 4), ("gpt2-demo", 2)])
def test_nothing_is_cut_where_all_pipelines_take_longer_than_that(model: str, stages: int) -> None:
    graph, cluster = graph_of(model), load_cluster("local:4")
    network, compute = NetworkModel(cluster), ComputeModel(cluster.device)
    problems = LayoutProblems(
        graph, network, compute, global_batch=32, optimizer="adamw", pins=Pins({}, {}, {}),
        schedules=("1f1b", "interleaved_1f1b"),
    )  # fmt: skip
    mesh = load_cluster(f"local:{4 // stages}").mesh()
    layouts = problems.build(SubproblemKey(PipelineStructure(stages, mesh), 4, "fastest"), None)
    assignment = SEARCHERS["exact"](layouts.problem, SearchOptions()).assignment
    bound, strategy = problems.bound(4), problems.strategy(layouts, assignment)
    seconds = problems.op_seconds(layouts, assignment)

    def found(below_s: float) -> list[float]:
        links = LinkModel(network, compute.copy_bytes_per_s)
        kinds = ("1f1b", "interleaved_1f1b")
        every = pipelined_strategies(bound, strategy, seconds, stages, links, kinds, problems.starts, below_s=below_s)
        return [estimate for estimate, _ in every]

    estimates = found(np.inf)
    assert estimates
    for share in (0.2, 0.9, 1.0, 1.1):
        left = found(share * min(estimates))
        assert left == estimates or (not left and share <= 1.0), "none that takes less is left out"
    assert not found(0.0)


@pytest.mark.skipif(cuts_module.LOOPS is None, reason="loops in C are not built here")
@pytest.mark.parametrize("seed", range(100))
def test_compiled_loops_deal_out_what_numpy_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    stages, virtual = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    places = made(rng, stages)
    if stages * virtual > len(places.names) + 1:
        return
    expected = StagePartitioner(places, PER_BYTE, stages).cut(stages * virtual)
    calls: list[int] = []
    dealt = cuts_module._slowest_chunks_s

    def both(bands: Sequence[np.ndarray], first: np.ndarray, num_chunks: int) -> np.ndarray:
        compiled = dealt(bands, first, num_chunks)
        with monkeypatch.context() as patch:
            patch.setattr(cuts_module, "LOOPS", None)
            np.testing.assert_array_equal(dealt(bands, first, num_chunks), compiled)
        calls.append(1)
        return compiled

    monkeypatch.setattr(cuts_module, "_slowest_chunks_s", both)
    assert StagePartitioner(places, PER_BYTE, stages).cut(stages * virtual) == expected
    assert calls or stages * virtual == 1
