from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosbp.errors import GraphError
from autosbp.graph.fold import fold_nodes, unfold_nodes

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
