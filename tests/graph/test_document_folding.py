from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosbp.errors import GraphError
from autosbp.graph.document_folding import MAX_DEPTH, fold_nodes, unfold_nodes
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.utils.json_io import canonical, loads
from autosbp.zoo import zoo_graph

pytestmark = pytest.mark.integration

MAX_NODES = 10_000
NAMES = st.from_regex(r"[a-c]_[0-9]{1,2}(\.[0-9])?", fullmatch=True)
NODES = st.builds(
    lambda name, op, refs, shape: {"name": name, "op": op, "args": [[{"ref": ref} for ref in refs], 2.0, None],
                                   "outputs": [{"shape": shape, "dtype": "float32"}]},
    NAMES, st.sampled_from(["aten.relu.default", "aten.add.Tensor"]), st.lists(NAMES, max_size=2),
    st.sampled_from([[2], ["batch", 3]]),
)  # fmt: skip


def layer(index: int, width: int = 3) -> list[dict[str, Any]]:
    """A block that reads the block before, an outside value and its own parameters."""
    return [
        {
            "name": f"n_{index * width + at}",
            "op": f"aten.op{at}.default",
            "args": [{"ref": f"n_{index * width + at - 1}"}, {"ref": f"h.{index}.w"}, {"ref": "mask"}],
            "outputs": [{"shape": ["batch", 8], "dtype": "float32"}],
        }
        for at in range(width)
    ]


def layers(count: int, width: int = 3) -> list[dict[str, Any]]:
    return [node for index in range(1, count + 1) for node in layer(index, width)]


@settings(deadline=None)
@given(st.lists(NODES, max_size=6), st.integers(1, 4), st.lists(NODES, max_size=4))
def test_unfolding_what_was_folded_is_the_identity(block: list[Any], repeats: int, tail: list[Any]) -> None:
    nodes = block * repeats + tail
    assert unfold_nodes(fold_nodes(nodes), MAX_NODES) == nodes


@settings(deadline=None)
@given(st.integers(2, 9), st.integers(1, 5), st.lists(NODES, max_size=3), st.lists(NODES, max_size=3))
def test_counted_blocks_between_other_nodes_come_back(count: int, width: int, head: list[Any], tail: list[Any]) -> None:
    nodes = [*head, *layers(count, width), *tail]
    folded = fold_nodes(nodes)
    assert unfold_nodes(folded, MAX_NODES) == nodes
    assert len(folded) < len(nodes)


def test_a_run_of_blocks_is_written_once() -> None:
    head = {"name": "n_2", "op": "aten.embedding.default", "args": [], "outputs": []}
    first, block, last = fold_nodes([head, *layers(96), {**head, "name": "end"}])
    assert (first, last["name"]) == (head, "end")
    assert block["repeat"] == 96
    assert [node["name"] for node in block["nodes"]] == ["n_{i*3+3}", "n_{i*3+4}", "n_{i*3+5}"]
    assert block["nodes"][0]["args"][1:] == [{"ref": "h.{i*1+1}.w"}, {"ref": "mask"}]


def test_blocks_whose_names_follow_no_counter_stay() -> None:
    nodes = layers(4)
    for node, name in zip(nodes[1::3], ("n_7", "n_9", "n_8", "n_30"), strict=True):
        node["name"] = name
    assert fold_nodes(nodes) == nodes


def plain(op: str, count: int, first: int) -> list[dict[str, Any]]:
    return [{"name": f"n_{first + at}", "op": op, "args": [{"ref": f"n_{first + at - 1}"}]} for at in range(count)]


def test_runs_beside_the_longest_are_folded_where_they_save_enough() -> None:
    nodes = [*plain("a", 20, 1), *plain("b", 5, 21), *plain("c", 40, 26), *plain("d", 12, 66)]
    folded = fold_nodes(nodes)
    assert [entry.get("repeat", 1) for entry in folded] == [20, 1, 1, 1, 1, 1, 40, 12]
    assert unfold_nodes(folded, MAX_NODES) == nodes


def test_a_graph_of_countless_different_runs_is_folded_to_a_bounded_depth() -> None:
    nodes = [node for at in range(400) for node in plain(f"op{at}", 12, 12 * at + 1)]
    folded = fold_nodes(nodes)
    assert sum("repeat" in entry for entry in folded) == MAX_DEPTH
    assert unfold_nodes(folded, MAX_NODES) == nodes


@pytest.fixture(scope="module")
def t5() -> LogicalGraph:
    from autosbp.graph.huggingface import capture_hf_config

    config = {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 48,
        "num_layers": 4, "num_decoder_layers": 4, "num_heads": 4, "vocab_size": 64, "dropout_rate": 0.0,
        "decoder_start_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    return capture_hf_config(config, 16)


def test_encoder_and_decoder_of_t5_are_both_written_once(t5: LogicalGraph) -> None:
    """The first layer of each makes the position biases that the others read; those of the encoder end otherwise, too."""
    folded = t5.to_dict()["nodes"]
    runs = [entry for entry in folded if "repeat" in entry]
    assert [run["repeat"] for run in runs] == [2, 3]
    for run, part in zip(runs, ("encoder", "decoder"), strict=True):
        assert f"{part}.block." in canonical(run).decode()
    assert len(folded) < 0.6 * len(t5.nodes)


def test_a_document_with_two_folded_runs_comes_back_bit_for_bit(t5: LogicalGraph) -> None:
    written = canonical(t5.to_dict())
    again = from_dict(loads(written.decode()))
    assert again == t5 and again.graph_hash == t5.graph_hash
    assert canonical(again.to_dict()) == written
    assert again.to_dict(fold=False)["nodes"] == t5.to_dict(fold=False)["nodes"]


def fold_s(nodes: list[dict[str, Any]]) -> float:
    times = []
    for _ in range(3):
        started = time.process_time()
        fold_nodes(nodes)
        times.append(time.process_time() - started)
    return min(times)


def test_folding_80_layers_costs_no_more_per_layer_than_folding_20() -> None:
    """Twice as much per layer would be well below what a quadratic search costs, four times."""
    nodes = zoo_graph("llama-70b").to_dict(fold=False)["nodes"]
    start = next(at for at, node in enumerate(nodes) if "layers.1." in str(node))
    width = next(at for at, node in enumerate(nodes) if "layers.2." in str(node)) - start
    assert fold_s(nodes) / 80 < 2 * fold_s(nodes[: start + 19 * width]) / 20


@pytest.mark.parametrize(
    "entry",
    [
        {"repeat": 0, "nodes": layer(1)},
        {"repeat": True, "nodes": layer(1)},
        {"repeat": 2, "nodes": []},
        {"repeat": 2, "nodes": {}},
        {"repeat": 2},
        {"repeat": 2, "nodes": layer(1), "code": 1},
        {"repeat": MAX_NODES, "nodes": layer(1)},
    ],
)
def test_a_malformed_or_endless_repeat_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match="nodes"):
        unfold_nodes([entry], MAX_NODES)
