"""Runs of ops that are recomputed: which strategies are refused, and what belongs to a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosbp.api import capture
from autosbp.costmodel.block_structure import find_blocks
from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.costmodel.recompute import checkpointing_segments, with_full_checkpointing
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.plan import Strategy
from autosbp.plan.schedules import GPIPE
from autosbp.program.parameter_flow import parameter_flow
from autosbp.program.parameter_sharding import shard_parameters
from autosbp.program.program import Boxing
from benchmarks.lowering._strategies import data_parallel

BATCH = 8


@pytest.fixture(scope="module")
def graph() -> LogicalGraph:
    found = capture("zoo:gpt2-demo")
    return found.bind(**dict.fromkeys(found.symbols, BATCH))


@pytest.fixture(scope="module")
def strategy() -> Strategy:
    return data_parallel(capture("zoo:gpt2-demo"), 4, BATCH)


def test_a_run_reads_its_block_s_input_and_its_own_parameters_alone(graph: LogicalGraph, strategy: Strategy) -> None:
    flow = parameter_flow(graph, with_full_checkpointing(graph, strategy))
    blocks = find_blocks(graph).blocks
    assert len(flow.segments) == len(blocks) == 4
    for segment, block in zip(flow.segments, blocks, strict=True):
        values = [key for key in segment.reads if isinstance(key, Ref) and key.name not in graph.parameter_names]
        assert len(values) == 1 and values[0].name not in block
        assert segment.own == {key.name for key in segment.reads if isinstance(key, Ref)} & graph.parameter_names
        assert list(segment.outputs) == [Ref(block[-1])]


def test_boxes_before_a_run_s_first_op_belong_to_it(graph: LogicalGraph, strategy: Strategy) -> None:
    split = with_full_checkpointing(graph, shard_parameters(graph, strategy, "use"))
    flow = parameter_flow(graph, split)
    for segment in flow.segments:
        assert isinstance(flow.items[segment.first], Boxing)
        assert segment.first == 0 or not isinstance(flow.items[segment.first - 1], Boxing)


def test_strategies_with_runs_are_read_back(graph: LogicalGraph, strategy: Strategy) -> None:
    again = with_full_checkpointing(graph, strategy, 2)
    assert len(again.recompute) == 2
    assert Strategy.from_dict(again.to_dict()) == again
    assert "recompute" not in strategy.to_dict()


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        ([["nowhere", "nowhere"]], "an op of the model"),
        ([["FIRST"]], "the first and the last"),
        ([["LAST", "FIRST"]], "in program order"),
        ([["FIRST", "LAST"], ["FIRST", "LAST"]], "after the previous segment"),
        ("blocks", "expected a list"),
    ],
)
def test_bad_runs_are_refused_by_name(graph: LogicalGraph, strategy: Strategy, runs: object, text: str) -> None:
    block = find_blocks(graph).blocks[1]
    names = {"FIRST": block[0], "LAST": block[-1]}
    if isinstance(runs, list):
        runs = [[names.get(name, name) for name in run] for run in runs]
    with pytest.raises(InputError, match=text) as error:
        parameter_flow(graph, Strategy.from_dict({**strategy.to_dict(), "recompute": runs}))
    assert "recompute" in error.value.field


def test_a_run_may_not_reach_over_a_cut(graph: LogicalGraph, strategy: Strategy) -> None:
    blocks = find_blocks(graph).blocks
    pipeline = Pipeline(2, (blocks[2][0],), GPIPE)
    mesh_of_stage = replace(data_parallel(capture("zoo:gpt2-demo"), 2, BATCH), pipeline=pipeline)
    with pytest.raises(InputError, match="a segment within one stage"):
        PipelineProgram(graph, replace(mesh_of_stage, recompute=checkpointing_segments(blocks, 4)))
    assert len(PipelineProgram(graph, with_full_checkpointing(graph, mesh_of_stage, 4)).strategy.recompute) == 2


def test_a_parameter_gathered_for_each_use_is_read_in_one_run_alone(graph: LogicalGraph, strategy: Strategy) -> None:
    last = [node.name for node in graph.nodes if node.name in graph.parameter_dependent][-1]
    behind = find_blocks(graph).after[0]
    split = shard_parameters(graph, strategy, "use")
    with pytest.raises(InputError, match="inside and outside of a recomputed segment"):
        parameter_flow(graph, replace(split, recompute=((behind, last),)))  # the head's weight is the embedding's


def test_runs_end_at_cuts_and_leave_the_last_blocks_of_chunks() -> None:
    blocks = [("a0", "a1"), ("b0", "b1"), ("c0", "c1"), ("d0", "d1"), ("e0", "e1")]
    assert checkpointing_segments(blocks, 2) == (("a0", "b1"), ("c0", "d1"), ("e0", "e1"))
    assert checkpointing_segments(blocks, 2, ("d0",)) == (("a0", "b1"), ("c0", "c1"), ("d0", "e1"))
    assert checkpointing_segments(blocks, 4, ("b1",)) == (("a0", "b0"), ("b1", "e1"))
    assert checkpointing_segments(blocks, 1, ("c0",), kept=1) == (("a0", "a1"), ("c0", "c1"), ("d0", "d1"))
    assert checkpointing_segments(blocks, 1, (), kept=9) == ()
