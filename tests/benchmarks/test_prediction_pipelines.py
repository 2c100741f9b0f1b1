"""The pipelined strategies of ``benchmarks.prediction``: they fit their models, and their chunks are as even as can be."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest

from autosbp.api import LogicalGraph, load_cluster, predict_costs
from autosbp.plan.plan import Strategy
from benchmarks.prediction._models import CASES
from benchmarks.prediction._pipelines import _partition, pipelined, stage_cluster


@cache
def graph() -> LogicalGraph:
    return CASES["vgg-head"].graph()


@cache
def staged(cluster: str) -> dict[str, Strategy]:
    return dict(pipelined(graph(), load_cluster(cluster), None, CASES["vgg-head"].batch, 6))


@pytest.mark.parametrize("cluster", ["emulated:2x2", "emulated:4x1"])
def test_pipelines_of_three_layers_have_at_most_three_chunks_and_can_be_predicted(cluster: str) -> None:
    found = staged(cluster)
    assert (
        len(found) >= 4 and len({strategy.pipeline.schedule for strategy in found.values() if strategy.pipeline}) == 3
    )
    for strategy in found.values():
        assert strategy.pipeline is not None and strategy.pipeline.num_chunks == 2
        assert (strategy.num_devices, strategy.num_micro) == (4, 4)
        assert predict_costs(graph(), strategy, load_cluster(cluster)).step_time_s > 0.0


def test_a_stage_fills_nodes_before_it_takes_another() -> None:
    for cluster, size, counts in (
        ("emulated:2x2", 2, (1, 2)),
        ("emulated:4x1", 2, (2, 1)),
        ("emulated:4x1", 1, (1, 1)),
    ):
        levels = stage_cluster(load_cluster(cluster), size).levels
        assert tuple(level.count for level in levels) == counts


def test_no_other_cuts_have_a_shorter_longest_chunk() -> None:
    seconds, sent = [3.0, 1.0, 4.0, 1.0, 5.0, 2.0, 2.0], [0.0, 0.5, 0.1, 0.2, 0.1, 3.0, 0.1]
    names = list("abcdefg")

    def longest(cuts: tuple[int, ...]) -> float:
        ends = [0, *cuts, len(names)]
        return max(
            sum(seconds[one:two]) + (sent[one] if one else 0.0) for one, two in zip(ends, ends[1:], strict=False)
        )

    found = _partition(names, seconds, [True] * 7, sent, 3)
    assert found is not None
    assert longest(tuple(map(names.index, found))) == min(map(longest, combinations(range(1, 7), 2)))


def test_every_chunk_has_an_op_with_parameters_or_no_cuts_exist() -> None:
    weighty = [True, False, False, True]
    assert _partition(list("abcd"), [9.0, 1.0, 1.0, 1.0], weighty, [0.0, 0.0, 1.0, 0.0], 2) == ("b",)
    assert _partition(list("abcd"), [1.0] * 4, weighty, [0.0] * 4, 3) is None
