"""The signature of a call, without ranks: rows that operands already match are taken, and no other boxing is cheaper."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.network import NetworkModel
from autosbp.eager._signature_choice import choose_signatures
from autosbp.graph.eager_calls import CallGraph, CallTensor, Slot, import_call
from autosbp.graph.ir import TensorMeta
from autosbp.sbp.boxing import is_even, layouts_of
from autosbp.sbp.layout import NdSbp
from autosbp.sbp.rules import node_options

CLUSTER = load_cluster("local:2x2")
CALLS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "a product": (torch.matmul, [(8, 16), (16, 4)]),
    "a linear layer": (torch.nn.functional.linear, [(8, 16), (4, 16), (4,)]),
    "a sum": (torch.add, [(8, 16), (16,)]),
    "a softmax": (lambda x: torch.softmax(x, 1), [(8, 16)]),
}


def call_of(name: str) -> CallGraph:
    function, shapes = CALLS[name]
    tensors = [CallTensor(TensorMeta(shape, "float64"), True, True) for shape in shapes]
    return import_call(function, tuple(map(Slot, range(len(shapes)))), {}, tensors)


def boxing_model() -> BoxingModel:
    return BoxingModel(NetworkModel(CLUSTER), CLUSTER.mesh())


@pytest.mark.parametrize("name", CALLS)
def test_rows_that_the_operands_match_are_taken_and_box_nothing(name: str) -> None:
    call, boxing = call_of(name), boxing_model()
    (node,) = call.graph.nodes
    taken = 0
    for rows in product(node_options(call.graph, node), repeat=2):
        ins = tuple(zip(*(row.ins for row in rows), strict=True))
        shapes = CALLS[name][1]
        if all(is_even(shape, layout, boxing.mesh) for shape, layout in zip(shapes, ins, strict=True)):
            strategy = choose_signatures(call.graph, dict(zip(call.leaves, ins, strict=True)), boxing)
            assert strategy.signatures[node.name].ins == ins
            assert not strategy.paths
            taken += 1
    assert taken > 3


@pytest.mark.parametrize("name", ["a product", "a sum"])
def test_no_other_row_needs_cheaper_boxing(name: str) -> None:
    call, boxing = call_of(name), boxing_model()
    (node,) = call.graph.nodes
    metas = [call.graph.meta(ref) for ref in node.refs()]

    def cost_s(given: tuple[NdSbp, ...], wanted: tuple[NdSbp, ...]) -> float:
        tables = [boxing.table(meta.sizes, meta.num_bytes, True) for meta in metas]
        ends = zip(tables, given, wanted, strict=True)
        return sum(float(table.cost_s[table.index[src], table.index[dst]]) for table, src, dst in ends)

    legal = [
        tuple(zip(*(row.ins for row in rows), strict=True))
        for rows in product(node_options(call.graph, node), repeat=2)
    ]
    even = [
        ins for ins in legal if all(is_even(meta.sizes, one, boxing.mesh) for meta, one in zip(metas, ins, strict=True))
    ]
    choices = list(product(*(layouts_of(meta.sizes, boxing.mesh, True) for meta in metas)))
    for given in choices[::7]:
        strategy = choose_signatures(call.graph, dict(zip(call.leaves, given, strict=True)), boxing)
        chosen = strategy.signatures[node.name].ins
        assert chosen in even
        assert cost_s(given, chosen) == pytest.approx(min(cost_s(given, ins) for ins in even))
