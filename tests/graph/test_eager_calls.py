"""Calls of torch functions become graphs: placed tensors are parameters, plain ones inputs, results keep their nesting."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autosbp.errors import UnsupportedError
from autosbp.graph.eager_calls import CallTensor, Slot, fill_slots, import_call
from autosbp.graph.ir import TensorMeta


def tensor(*shape: int, placed: bool = True, tracked: bool = True) -> CallTensor:
    return CallTensor(TensorMeta(shape, "float32"), placed, tracked)


def test_placed_tensors_are_parameters_and_plain_ones_are_whole_inputs() -> None:
    tensors = [tensor(4, 6), tensor(3, 6, tracked=False), tensor(3, placed=False, tracked=False)]
    call = import_call(torch.nn.functional.linear, (Slot(0), Slot(1), Slot(2)), {}, tensors)
    graph = call.graph
    assert [(leaf.name, leaf.trained) for leaf in graph.parameters] == list(
        zip(call.leaves, (True, False), strict=False)
    )
    assert [leaf.name for leaf in graph.inputs] == [call.leaves[2]]
    assert [node.op for node in graph.nodes] == ["aten.linear.default"]
    assert [graph.meta(ref).sizes for ref in graph.results] == [(4, 3)]
    assert graph.has_gradient(graph.results[0])


def test_results_are_nested_as_the_function_does_and_integers_have_no_gradient() -> None:
    call = import_call(torch.topk, (Slot(0), 2), {}, [tensor(4, 6)])
    values, places = call.graph.results
    assert (call.graph.has_gradient(values), call.graph.has_gradient(places)) == (True, False)
    built = call.build(["values", "places"])
    assert (built.values, built.indices) == ("values", "places")
    pair = import_call(torch.split, (Slot(0), 3, 1), {}, [tensor(4, 6)])
    assert pair.build([1, 2]) == (1, 2)


def test_nested_tensor_arguments_are_filled() -> None:
    arg = [Slot(0), (Slot(1), 3), {"key": Slot(0)}, slice(0, 2)]
    assert fill_slots(arg, ["a", "b"]) == ["a", ("b", 3), {"key": "a"}, slice(0, 2)]


@pytest.mark.parametrize(
    ("function", "words"),
    [(torch.Tensor.add_, "in place"), (torch.Tensor.tolist, "tolist"), (torch.Tensor.stride, "no tensor")],
)
def test_calls_without_a_graph_are_refused(function: Any, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        import_call(function, (Slot(0), 1) if function is torch.Tensor.add_ else (Slot(0),), {}, [tensor(4)])
