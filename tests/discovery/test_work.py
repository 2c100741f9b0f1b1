"""What autograd keeps of an op beside the tensors of its graph: seen on a stand-in, used at other sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autosbp.costmodel.memory import workspace_elements
from autosbp.discovery import discover_rules
from autosbp.graph.capture import capture
from tests.discovery.test_trials import Recurrent

ERROR = 0.25
"""A kernel's workspace is more than one product of sizes."""


def kept(layer: nn.RNNBase, x: torch.Tensor) -> float:
    """Elements in storages that are no parameter's, not the input's and not the output's."""
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out, _ = layer(x)
    known = {each.untyped_storage().data_ptr() for each in (x, out, *layer.parameters())}
    return sum(size for storage, size in storages.items() if storage not in known) / out.element_size()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("size", [12, 48])
def test_recurrent_layers_keep_their_gates(kind: type[nn.RNNBase], size: int) -> None:
    module, x = Recurrent(kind, size, 1), torch.zeros(4, 9, size)
    graph = discover_rules(capture(module, {"x": x}, name="recurrent")).bind(batch=4)
    (node,) = (node for node in graph.nodes if node.rule)
    predicted = workspace_elements(graph, node, [graph.meta(ref).sizes for ref in node.refs()])
    assert predicted == pytest.approx(kept(module.layers, x), rel=ERROR)
