"""Made-up programs of repeated blocks, on one device or data parallel, for dry runs of memory."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autosbp.graph.ir import Input, LogicalGraph, Node, Parameter, Ref, TensorMeta
from autosbp.plan.plan import Signature, Strategy
from autosbp.sbp.layout import B, I, NdSbp, P, S
from autosbp.sbp.mesh import Axis, Mesh

Runs = tuple[tuple[str, str], ...]


@dataclass
class Program:
    """Built op by op; names of values stand for them."""

    dtype: str = "float32"
    nodes: list[Node] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def weight(self, name: str, *shape: int, trained: bool = True) -> str:
        self.parameters.append(Parameter(name, TensorMeta(shape, self.dtype), name, (), trained))
        self.shapes[name] = shape
        return name

    def input(self, name: str, *shape: int) -> str:
        self.inputs.append(Input(name, TensorMeta(shape, self.dtype)))
        self.shapes[name] = shape
        return name

    def op(self, op: str, *args: Any, shape: tuple[int, ...] | None = None) -> str:
        name = f"n{len(self.nodes) + 1}"
        shape = self.shapes[args[0]] if shape is None else shape
        refs = tuple(Ref(each) if isinstance(each, str) else each for each in args)
        self.nodes.append(Node(name, f"aten.{op}", refs, {}, (TensorMeta(shape, self.dtype),)))
        self.shapes[name] = shape
        return name

    def linear(self, x: str, weight: str) -> str:
        return self.op("linear.default", x, weight, shape=(*self.shapes[x][:-1], self.shapes[weight][0]))

    def relu(self, x: str) -> str:
        return self.op("relu.default", x)

    def add(self, one: str, other: str) -> str:
        return self.op("add.Tensor", one, other)

    def mul(self, one: str, other: str) -> str:
        return self.op("mul.Tensor", one, other)

    def sum(self, x: str) -> str:
        return self.op("sum.default", x, shape=())

    def graph(self, loss: str) -> LogicalGraph:
        return LogicalGraph("made", {}, tuple(self.parameters), tuple(self.inputs), (), tuple(self.nodes), Ref(loss))


def on_one_device(graph: LogicalGraph, batch: int, micro_batch: int, **given: Any) -> Strategy:
    signatures = {
        node.name: Signature(tuple(() for _ in node.refs()), ((),) * len(node.outputs))
        for node in graph.nodes
        if node.name in graph.parameter_dependent
    }
    parameters: Mapping[str, NdSbp] = {leaf.name: () for leaf in graph.parameters}
    return Strategy(Mesh((), (1,)), signatures, parameters, {}, batch, micro_batch, "sgd", **given)


def data_parallel(graph: LogicalGraph, batch: int, micro_batch: int, *, split: bool = False, **given: Any) -> Strategy:
    """Over two devices; parameters are whole, or ``split`` and gathered."""
    stored: NdSbp = (S(0),) if split else (B,)
    signatures = {
        node.name: Signature(
            tuple((B,) if ref.name in graph.parameter_names else (S(0),) for ref in node.refs()),
            ((P,) if node.op == "aten.sum.default" else (S(0),),),
        )
        for node in graph.nodes
    }  # fmt: skip
    paths = {((), graph.meta(graph.loss).num_bytes, True, (P,), (I,)): ((P,), (I,))}
    for leaf in graph.parameters if split else ():
        paths[leaf.meta.sizes, leaf.meta.num_bytes, True, stored, (B,)] = (stored, (B,))
    parameters = {leaf.name: stored for leaf in graph.parameters}
    mesh = Mesh((Axis("d", 2, 0),), (2,))
    return Strategy(mesh, signatures, parameters, paths, batch, micro_batch, "sgd", **given)


STEPS = (
    "linear", "linear", "relu", "tanh", "residual", "two back", "own", "frozen", "mask", "data", "first", "dead",
    "softmax", "transposed", "norm", "dropout", "reshaped", "shared",
)  # fmt: skip


def random_blocks(rng: random.Random) -> tuple[LogicalGraph, Runs, list[str]]:
    """Six to eleven like blocks of a few steps, the runs of them that are recomputed, and the op with which each begins. Some
    read two blocks back, a value from before all of them, or a weight that all of them share; some transpose what they hand on;
    of some the loss has the squares of all weights."""
    size, count, depth = rng.choice([8, 16]), rng.choice([4, 8, 16]), rng.randint(6, 11)
    count = size if rng.random() < 0.3 else count
    made = Program(rng.choice(["float32", "bfloat16"]))
    x = made.input("x", 2, count, size)
    first = last = made.linear(x, made.weight("in", size, size))
    shared, mask = made.weight("shared", count, size), made.input("mask", 2, count, size)
    steps = [rng.choice(STEPS) for _ in range(rng.randint(1, 5))]
    if not {"linear", "own", "frozen"} & set(steps):
        steps.append("linear")
    outputs, weights, begins = [last, last], [], []
    for block in range(depth):
        start, begin = last, len(made.nodes) + 1
        for at, step in enumerate(steps):
            place = f"{block}_{at}"
            if step in ("linear", "frozen"):
                weight = made.weight(f"w{place}", size, size, trained=step == "linear")
                weights += [weight] if step == "linear" else []
                last = made.linear(last, weight)
            elif step in ("residual", "two back", "first"):
                last = made.add(last, {"residual": start, "two back": outputs[-2], "first": first}[step])
            elif step in ("own", "shared", "mask"):
                other = (
                    made.weight(f"o{place}", count, size) if step == "own" else {"shared": shared, "mask": mask}[step]
                )
                last = made.mul(last, other)
            elif step == "data":
                last = made.add(last, made.op("neg.default", mask))
            elif step == "dead":
                made.op("exp.default", last)
            elif step == "transposed":
                whole = made.shapes[last]
                last = made.op("permute.default", last, (0, 2, 1), shape=(whole[0], whole[2], whole[1]))
                if whole[1] != whole[2]:
                    last = made.op("permute.default", last, (0, 2, 1), shape=whole)
            elif step == "reshaped":
                whole = made.shapes[last]
                flat = made.op("reshape.default", last, (2 * count, size), shape=(2 * count, size))
                last = made.op("reshape.default", made.relu(flat), whole, shape=whole)
            elif step == "norm":
                scale, shift = made.weight(f"g{place}", size), made.weight(f"b{place}", size)
                last = made.op("layer_norm.default", last, (size,), scale, shift)
            else:
                rest = {"softmax": ("softmax.int", last, -1), "dropout": ("dropout.default", last, 0.1, True)}
                last = made.op(*rest.get(step, (f"{step}.default", last)))
        outputs.append(last)
        begins.append(f"n{begin}")
    end = len(made.nodes)
    if rng.random() < 0.3:
        last = made.op("reshape.default", last, (2 * count * size,), shape=(2 * count * size,))
    loss = made.sum(last)
    for weight in weights if rng.random() < 0.3 else ():
        loss = made.add(loss, made.sum(made.mul(weight, weight)))
    ends = [*(f"n{int(each[1:]) - 1}" for each in begins[1:]), f"n{end}"]
    runs: Runs = ()
    if rng.random() < 0.6:
        together, recomputed = rng.choice([1, 1, 2, 4]), depth - rng.choice([0, 2, depth // 2])
        runs = tuple((begins[at], ends[min(at + together, recomputed) - 1]) for at in range(0, recomputed, together))
        runs = runs[rng.random() < 0.4 :]
    return made.graph(loss), runs, begins
