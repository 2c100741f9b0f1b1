"""Graphs cut into chunks: what each holds, what goes from one to the next, and cuts that are none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.pipeline_chunks import cut_graph
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.plan import Strategy
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ZERO_BUBBLE
from tests.executor.pipeline.strategies import data_parallel, even_cuts
from tests.models.conftest import graph_of


@pytest.fixture(scope="module")
def graph() -> LogicalGraph:
    captured = graph_of("t5")
    return captured.bind(**dict.fromkeys(captured.symbols, 2))


@pytest.fixture(scope="module")
def strategy() -> Strategy:
    return data_parallel(graph_of("t5"), 2)


def test_chunks_hold_every_op_that_depends_on_a_parameter_once_and_data_where_it_is_read(graph: LogicalGraph) -> None:
    chunks = cut_graph(graph, even_cuts(graph, 4))
    held = [node.name for chunk in chunks for node in chunk.nodes if node.name in graph.parameter_dependent]
    assert held == [node.name for node in graph.nodes if node.name in graph.parameter_dependent]
    for chunk in chunks:
        known = {leaf.name for leaf in chunk.leaves} | {ref.name for ref in chunk.received_refs}
        for node in chunk.nodes:
            assert {ref.name for ref in node.refs()} <= known
            known.add(node.name)


def test_ops_of_a_chunk_are_timed_as_those_of_the_whole(graph: LogicalGraph) -> None:
    """Integers of a chunk may come from inputs that it does not read: their bound is the whole graph's."""
    chunks = cut_graph(graph, even_cuts(graph, 4))
    assert any(not chunk.inputs for chunk in chunks) and graph.high > 1
    assert {chunk.high for chunk in chunks} == {graph.high}


def test_what_a_chunk_sends_the_next_receives_even_when_only_a_later_one_reads_it(graph: LogicalGraph) -> None:
    chunks = cut_graph(graph, even_cuts(graph, 8))
    assert chunks[0].received_refs == chunks[-1].results == ()
    for one, two in zip(chunks, chunks[1:], strict=False):
        assert one.results == two.received_refs
        assert not {ref.name for ref in one.results} - graph.parameter_dependent
    passed = [set(chunk.received_refs) & set(chunk.results) for chunk in chunks]
    read = [{ref for node in chunk.nodes for ref in node.refs()} for chunk in chunks]
    assert any(refs - reads for refs, reads in zip(passed, read, strict=True))


@pytest.mark.parametrize(
    ("cuts", "limit"),
    [
        (["nowhere"], "the name of an op"),
        (["FIRST"], "after the first"),
        (["DATA"], "depends on a parameter"),
        (["LATE", "EARLY"], "an op after"),
    ],
)
def test_invalid_cuts_are_refused_by_name(graph: LogicalGraph, cuts: list[str], limit: str) -> None:
    computed = [node.name for node in graph.nodes if node.name in graph.parameter_dependent]
    data = next(node.name for node in graph.nodes if node.name not in graph.parameter_dependent)
    named = {"FIRST": computed[0], "DATA": data, "EARLY": computed[5], "LATE": computed[9]}
    with pytest.raises(InputError, match=limit) as caught:
        cut_graph(graph, [named.get(cut, cut) for cut in cuts])
    assert caught.value.field.startswith("strategy.pipeline.cuts[")


def test_pipelines_round_trip_and_are_omitted_if_absent(strategy: Strategy) -> None:
    pipeline = Pipeline(2, even_cuts(graph_of("t5"), 4), INTERLEAVED)
    staged = replace(strategy, pipeline=pipeline)
    assert Strategy.from_dict(json.loads(json.dumps(staged.to_dict()))) == staged
    assert staged.num_devices == 4
    assert "pipeline" not in strategy.to_dict()
    for lag in (None, 0, 3):
        staged = replace(strategy, pipeline=Pipeline(2, even_cuts(graph_of("t5"), 4), ZERO_BUBBLE, lag))
        document = json.loads(json.dumps(staged.to_dict()))
        assert Strategy.from_dict(document) == staged
        assert document["pipeline"].get("weights_lag") == lag
        assert ("weights_lag" in document["pipeline"]) == (lag is not None)


@pytest.mark.parametrize(
    ("change", "field", "limit"),
    [
        ({"num_stages": 1}, "num_stages", "an integer in"),
        ({"num_stages": 3}, "cuts", "a multiple of the 3 stages"),
        ({"schedule": "1f1f"}, "schedule", "one of gpipe"),
        ({"schedule": "interleaved_1f1b"}, "schedule", "at least two chunks per stage"),
        ({"num_stages": 4, "cuts": ["a", "b", "c", "d", "e", "f", "g"]}, "schedule", "one chunk per stage"),
        ({"num_stages": 5, "cuts": ["a", "b", "c", "d"]}, "schedule", "at least the 5 stages"),
        ({"num_stages": 3, "cuts": ["a", "b"], "schedule": "zero_bubble"}, "schedule", "a multiple of the 3 stages"),
        ({"cuts": ["a", "a", "b"], "schedule": "zero_bubble"}, "cuts", "different ops"),
        ({"cuts": [7]}, "cuts[0]", "the name of an op"),
        ({"virtual": 2}, "virtual", "known fields"),
        ({"weights_lag": 1}, "weights_lag", "1f1b takes none"),
        ({"schedule": "zero_bubble", "weights_lag": -1}, "weights_lag", "an integer in"),
        ({"schedule": "zero_bubble", "weights_lag": "1"}, "weights_lag", "an integer in"),
    ],
)
def test_a_bad_pipeline_names_its_field(strategy: Strategy, change: dict[str, Any], field: str, limit: str) -> None:
    document = {"num_stages": 2, "cuts": ["linear_3"], "schedule": "1f1b", **change}
    with pytest.raises(InputError, match=limit) as caught:
        Strategy.from_dict({**strategy.to_dict(), "pipeline": document})
    assert caught.value.field == f"strategy.pipeline.{field}"


def test_cuts_are_checked_against_the_graph_when_it_is_staged(graph: LogicalGraph, strategy: Strategy) -> None:
    with pytest.raises(InputError, match="an op of the graph"):
        PipelineProgram(graph, replace(strategy, pipeline=Pipeline(2, ("nowhere",), GPIPE)))
    with pytest.raises(InputError, match="expected a pipeline"):
        PipelineProgram(graph, strategy)
