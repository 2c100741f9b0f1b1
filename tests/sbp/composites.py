"""Random chains of ops with random valid layouts, and the boxings that come between."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.network import NetworkModel
from autosbp.graph.ir import Input, LogicalGraph, Node, Parameter, Ref, TensorMeta
from autosbp.graph.to_fx import resolve_op
from autosbp.plan.plan import BoxingKey, Signature, Strategy
from autosbp.program.chosen_options import checked_choices, uneven_choice
from autosbp.sbp.boxing import is_even
from autosbp.sbp.factor_notation import tensor_inputs
from autosbp.sbp.layout import B, NdSbp, S
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import node_options
from autosbp.search.problem.strategy import add_paths

EXTENT = 12
"""Of every dim: what 2, 3, 4 and 6 devices divide."""
TRIES = 200


@dataclass
class Chain:
    """A graph in the making: ``value`` is what the next op reads."""

    rng: random.Random
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parameters: list[Parameter] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    value: str = "x"

    def parameter(self, *shape: int) -> Ref:
        name = f"p{len(self.parameters)}"
        self.parameters.append(Parameter(name, TensorMeta(shape, "float64"), name))
        self.shapes[name] = shape
        return Ref(name)

    def call(self, op: str, *args: Any) -> Ref:
        """Append a node that becomes the value."""

        def example(arg: Any) -> Any:
            return torch.ones(self.shapes[arg.name], dtype=torch.float64) if isinstance(arg, Ref) else arg

        shape = tuple(resolve_op(f"aten.{op}")(*map(example, args)).shape)
        self.value = f"n{len(self.nodes)}"
        self.shapes[self.value] = shape
        self.nodes.append(Node(self.value, f"aten.{op}", args, {}, (TensorMeta(shape, "float64"),)))
        return Ref(self.value)


def linear(chain: Chain) -> None:
    width = chain.shapes[chain.value][-1]
    bias = [chain.parameter(EXTENT)] if chain.rng.random() < 0.5 else []
    chain.call("linear.default", Ref(chain.value), chain.parameter(EXTENT, width), *bias)


def elementwise(chain: Chain) -> None:
    op = chain.rng.choice(("tanh.default", "gelu.default", "neg.default", "relu.default"))
    chain.call(op, Ref(chain.value))


def with_parameter(chain: Chain) -> None:
    shape = chain.shapes[chain.value]
    broadcast = [size if chain.rng.random() < 0.7 else 1 for size in shape[chain.rng.randrange(len(shape)) :]]
    op = chain.rng.choice(("add.Tensor", "mul.Tensor", "sub.Tensor"))
    chain.call(op, Ref(chain.value), chain.parameter(*broadcast))


def normalised(chain: Chain) -> None:
    width = chain.shapes[chain.value][-1]
    if chain.rng.random() < 0.5:
        chain.call("softmax.int", Ref(chain.value), -1)
    else:
        weights = chain.parameter(width), chain.parameter(width)
        chain.call("layer_norm.default", Ref(chain.value), (width,), *weights)


def gated(chain: Chain) -> None:
    """Two readers of one value."""
    value = Ref(chain.value)
    chain.call(chain.rng.choice(("add.Tensor", "mul.Tensor")), value, chain.call("tanh.default", value))


def centred(chain: Chain) -> None:
    value, dim = Ref(chain.value), chain.rng.randrange(len(chain.shapes[chain.value]))
    chain.call("sub.Tensor", value, chain.call("sum.dim_IntList", value, (dim,), True))


def turned(chain: Chain) -> None:
    order = list(range(len(chain.shapes[chain.value])))
    chain.rng.shuffle(order)
    chain.call("permute.default", Ref(chain.value), tuple(order))


def reshaped(chain: Chain) -> None:
    shape = chain.shapes[chain.value]
    target = (shape[0] * shape[1], *shape[2:]) if len(shape) > 2 else (shape[0], shape[1] // 6, 6)
    chain.call("reshape.default", Ref(chain.value), target)


OPS: tuple[Callable[[Chain], None], ...] = (
    linear, elementwise, with_parameter, normalised, gated, centred, turned, reshaped,
)  # fmt: skip


def random_graph(rng: random.Random) -> LogicalGraph:
    """Three to six random ops after a linear layer of a batch; the loss is a sum of squares."""
    chain = Chain(rng, {"x": (EXTENT, 2 * EXTENT)})
    linear(chain)
    for _ in range(rng.randint(3, 6)):
        rng.choice(OPS)(chain)
    loss = chain.call("sum.default", chain.call("pow.Tensor_Scalar", Ref(chain.value), 2))
    inputs = (Input("x", TensorMeta((EXTENT, 2 * EXTENT), "float64")),)
    return LogicalGraph("chain", {}, tuple(chain.parameters), inputs, (), tuple(chain.nodes), loss)


def random_strategy(graph: LogicalGraph, cluster: Cluster, rng: random.Random) -> Strategy:
    """Of every op a random legal layout on each axis, of every parameter a random store; boxings take cheapest paths."""
    mesh = cluster.mesh()
    boxing = BoxingModel(NetworkModel(cluster), mesh)
    parameters = {leaf.name: _stored(leaf.meta.sizes, mesh, rng) for leaf in graph.parameters}
    signatures = {node.name: _signature(graph, node, mesh, rng) for node in graph.nodes}
    paths: dict[BoxingKey, tuple[NdSbp, ...]] = {}
    add_paths(paths, graph, boxing, signatures, parameters)
    return Strategy(mesh, signatures, parameters, paths, EXTENT, EXTENT, "sgd")


def _stored(sizes: tuple[int, ...], mesh: Mesh, rng: random.Random) -> NdSbp:
    states = [B, *(S(dim) for dim in range(len(sizes)))]
    found = [layout for layout in product(states, repeat=mesh.ndim) if is_even(sizes, layout, mesh)]
    return rng.choice(found)


def _signature(graph: LogicalGraph, node: Node, mesh: Mesh, rng: random.Random) -> Signature:
    options = node_options(graph, node)
    metas = (*tensor_inputs(graph, node), *node.outputs)
    for _ in range(TRIES):
        chosen = [rng.choice(options) for _ in mesh.axes]
        signature = Signature(
            tuple(zip(*(option.ins for option in chosen), strict=True)),
            tuple(zip(*(option.outs for option in chosen), strict=True)),
        )
        if uneven_choice(checked_choices(graph, node, signature, mesh.ndim), mesh) is not None:
            continue
        if all(
            is_even(meta.sizes, one, mesh) for meta, one in zip(metas, (*signature.ins, *signature.outs), strict=True)
        ):
            return signature
    raise AssertionError(f"{node.op} has no layout on {mesh}")
