"""Blocks of the zoo's models, found in structure alone, and what is recomputed of them."""

from __future__ import annotations

from functools import cache

import pytest

from autosbp.costmodel.block_structure import find_blocks, single_activation_sections
from autosbp.costmodel.recompute import recomputable_blocks, recomputed_ops
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.zoo import zoo_graph
from tests.models.conftest import graph_of

pytestmark = pytest.mark.integration


@cache
def bound(name: str) -> LogicalGraph:
    graph = zoo_graph(name)
    return graph.bind(**graph.symbols)


@pytest.mark.parametrize(("name", "count"), [("gpt2", 12), ("gpt3-175b", 96), ("llama-7b", 32), ("llama-demo", 4)])
def test_transformer_layers_are_the_blocks(name: str, count: int) -> None:
    graph, found = bound(name), find_blocks(bound(name))
    assert len(found.blocks) == count
    assert len({len(block) for block in found.blocks}) == 1
    parts = (found.before, *found.blocks, found.after)
    nodes = [node.name for node in graph.nodes if node.name in graph.parameter_dependent]
    assert [name for part in parts for name in part] == nodes


def test_one_value_crosses_every_cut() -> None:
    graph = bound("gpt2-demo")
    made: set[str] = set()
    parts = single_activation_sections(graph)
    for part in parts[:-1]:
        made |= {node.name for node in part}
        later = {ref.name for node in graph.nodes if node.name not in made for ref in node.refs()}
        assert len(made & later) == 1


def test_a_model_without_repetition_is_one_part() -> None:
    found = find_blocks(bound("wide-deep-small"))
    assert found.before and not found.blocks and not found.after


def test_selective_recomputation_repeats_attention_alone_and_full_all_of_the_blocks() -> None:
    graph = bound("gpt2-demo")
    ops = {node.name: node.op for node in graph.nodes}
    assert {ops[name] for name in recomputed_ops(graph, "selective")} == {"aten.scaled_dot_product_attention.default"}
    blocks = find_blocks(graph).blocks
    assert recomputed_ops(graph, "full") == {name for block in blocks for name in block}
    assert recomputed_ops(graph, "none") == frozenset()


def test_an_unknown_mode_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="none, selective, full"):
        recomputed_ops(bound("gpt2-demo"), "some")


@pytest.mark.parametrize(("name", "count"), [("mixtral", 2), ("whisper", 2), ("t5", 0), ("resnet", 0)])
@pytest.mark.some(2)
def test_layers_that_share_more_than_one_value_can_be_recomputed(name: str, count: int) -> None:
    graph = graph_of(name)
    blocks = recomputable_blocks(graph.bind(**dict.fromkeys(graph.symbols, 4)))
    assert len(blocks) == count
    assert len({len(block) for block in blocks}) <= 1
