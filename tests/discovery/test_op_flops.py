"""What autograd keeps of an op beside the tensors of its graph: seen on a stand-in, used at other sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from autosbp.costmodel.memory import workspace_bytes
from autosbp.discovery import discover_rules
from autosbp.graph.capture import capture
from autosbp.graph.ir import LogicalGraph
from tests.discovery.test_child_process import Recurrent

pytestmark = pytest.mark.integration

Tensor = torch.Tensor
BATCH, ROWS = 4, 9


@torch.library.custom_op("shop::scored", mutates_args=())
def scored(x: Tensor) -> tuple[Tensor, Tensor]:
    """[b, n, k] -> the same, mixed by the products of rows; and, for the backward pass, these products."""
    scores = x @ x.transpose(1, 2)
    return scores @ x, scores


@scored.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[0], x.shape[1], x.shape[1])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
    x, scores = ctx.saved_tensors
    inner = grad @ x.transpose(1, 2)
    return scores @ grad + (inner + inner.transpose(1, 2)) @ x


scored.register_autograd(_backward, setup_context=_setup)


class Scored(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = scored(x * self.scale)[0]
        return out.square().mean()


def kept(layers: nn.RNNBase, x: Tensor) -> int:
    """Bytes in storages that are no parameter's, not the input's, not the first states' and not the output's."""
    state = torch.zeros(1, BATCH, layers.hidden_size)
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layers(x, (state, state) if isinstance(layers, nn.LSTM) else state)[0]
    known = {each.untyped_storage().data_ptr() for each in (x, state, out, *layers.parameters())}
    return sum(size for storage, size in storages.items() if storage not in known)


def predicted(graph: LogicalGraph) -> int:
    (node,) = (node for node in graph.nodes if node.rule)
    return workspace_bytes(graph, node, [graph.meta(ref).sizes for ref in node.refs()])


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("size", [12, 48])
@pytest.mark.some(3)
def test_recurrent_layers_keep_what_their_steps_keep(kind: type[nn.RNNBase], size: int) -> None:
    module, x = Recurrent(kind, size, 1), torch.zeros(BATCH, ROWS, size)
    graph = discover_rules(capture(module, {"x": x}, name="recurrent")).bind(batch=BATCH)
    assert predicted(graph) == kept(module.layers, x)


@pytest.mark.parametrize("size", [12, 48])
def test_what_a_custom_op_keeps_grows_as_a_product_of_sizes(size: int) -> None:
    captured = capture(Scored(size), {"x": torch.zeros(BATCH, ROWS, size)}, name="scored")
    graph = discover_rules(captured, use_cache=False).bind(batch=BATCH)
    assert predicted(graph) == BATCH * ROWS * ROWS * 4
