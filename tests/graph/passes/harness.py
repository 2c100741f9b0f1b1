"""Graphs written by hand, and a check that a pass leaves their numbers as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autosbp.graph.capture import capture
from autosbp.graph.ir import Constant, Input, LogicalGraph, Node, Parameter, Ref, Sym, TensorMeta
from autosbp.graph.to_fx import initial_parameter, to_graph_module
from tests.graph.numerics import assert_same, weights

BATCH = Sym("batch")
Shape = tuple[int | str, ...]


def node(name: str, op: str, *args: Any, shape: Shape | list[Shape], dtype: str = "float64", **kwargs: Any) -> Node:
    """A node whose strings that start with ``@`` are references."""
    shapes = shape if isinstance(shape, list) else [shape]
    found = Node(name, f"aten.{op}", args, kwargs, tuple(TensorMeta(each, dtype) for each in shapes))
    return found.map_args(lambda arg: _ref(arg) if isinstance(arg, str) and arg.startswith("@") else arg)


def _ref(text: str) -> Ref:
    name, _, index = text[1:].partition(":")
    return Ref(name, int(index or 0))


def graph_of(
    nodes: Sequence[Node],
    parameters: Mapping[str, Shape],
    inputs: Mapping[str, tuple[Shape, str]],
    constants: Sequence[Constant] = (),
) -> LogicalGraph:
    """A graph whose loss is the sum of its last node."""
    last = nodes[-1]
    total = [] if last.outputs[0].shape == () else [node("total", "sum.default", f"@{last.name}", shape=())]
    return LogicalGraph(
        "test",
        {"batch": 4},
        tuple(Parameter(name, TensorMeta(shape, "float64"), name) for name, shape in parameters.items()),
        tuple(Input(name, TensorMeta(shape, dtype), 5) for name, (shape, dtype) in inputs.items()),
        tuple(constants),
        (*nodes, *total),
        Ref((*nodes, *total)[-1].name),
    )


def run(graph: LogicalGraph, batch: int) -> list[torch.Tensor]:
    """The loss and the gradient of every source tensor."""
    bound = graph.bind(batch=batch)
    generator = torch.Generator().manual_seed(batch)
    sources = {
        name: torch.randn(SOURCES[name], generator=generator, dtype=torch.float64, requires_grad=True)
        for name in sorted({leaf.source for leaf in graph.parameters})
    }
    inputs = [
        torch.randint(0, 5, leaf.meta.sizes, generator=generator)
        if leaf.meta.dtype == "int64"
        else torch.randn(leaf.meta.sizes, generator=generator, dtype=torch.float64)
        for leaf in bound.inputs
    ]
    loss = to_graph_module(bound)(*(initial_parameter(leaf, sources) for leaf in bound.parameters), *inputs)
    return [loss, *torch.autograd.grad(loss, list(sources.values()))]


SOURCES: dict[str, tuple[int, ...]] = {"w": (6, 8), "c": (8, 6), "b": (6,), "e": (5, 8)}
X: dict[str, tuple[Shape, str]] = {"x": (("batch", 3, 8), "float64")}
LABELS: dict[str, tuple[Shape, str]] = {**X, "labels": (("batch", 3), "int64")}
W: dict[str, Shape] = {"w": (6, 8), "b": (6,)}
LINEAR = node("y", "linear.default", "@x", "@w", "@b", shape=("batch", 3, 6))


def ops(graph: LogicalGraph) -> list[str]:
    return [each.op.removeprefix("aten.") for each in graph.nodes]


def check(graph: LogicalGraph, step: Callable[[LogicalGraph], LogicalGraph], expected: list[str]) -> LogicalGraph:
    """The pass gives these ops, and equal numbers at two batch sizes."""
    changed = step(graph)
    assert ops(changed) == expected
    for batch in (2, 5):
        for one, two in zip(run(graph, batch), run(changed, batch), strict=True):
            torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-13)
    return changed


class Head(torch.nn.Module):
    """A linear layer on [batch, 3, 8] and a function of its output [batch, 3, 6] and of labels [batch, 3] below 6."""

    def __init__(self, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *, bias: bool = True) -> None:
        super().__init__()
        self.loss = loss
        self.head = torch.nn.Linear(8, 6, bias=bias)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.loss(self.head(x), labels)


def captured(module: torch.nn.Module) -> LogicalGraph:
    """The canonical graph of a module like ``Head``; its loss and gradients, those of the module."""
    module = module.double()
    weights(module)
    graph = capture(module, batch_of(2), name="test", input_high={"labels": 6})
    for size in (2, 5):
        assert_same(graph, module, batch_of(size))
    return graph


def batch_of(size: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    labels = torch.randint(0, 6, (size, 3), generator=generator)
    labels[0, 1] = -100
    return {"x": torch.randn(size, 3, 8, generator=generator, dtype=torch.float64), "labels": labels}
