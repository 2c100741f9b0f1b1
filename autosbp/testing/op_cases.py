"""Descriptions of op calls for the numeric proof of sharding rules.

A case holds the op's positional and keyword arguments, with tensors as ``Tensor`` descriptions; ``op_case`` builds a
graph of one node from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from autosbp.graph.ir import Input, LogicalGraph, Node, Parameter, Ref, TensorMeta
from autosbp.graph.to_fx import resolve_op, to_fx_arg, torch_dtype


@dataclass(frozen=True)
class Tensor:
    """A tensor argument. ``trained`` tensors have a gradient; ``high`` is the exclusive bound of integers."""

    shape: tuple[int, ...]
    dtype: str = "float64"
    trained: bool = True
    high: int | None = None


@dataclass(frozen=True)
class Case:
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def trained_tensor(*shape: int, dtype: str = "float64") -> Tensor:
    return Tensor(shape, dtype)


def data(*shape: int) -> Tensor:
    return Tensor(shape, trained=False)


def ints(high: int, *shape: int) -> Tensor:
    return Tensor(shape, "int64", False, high)


def mask(*shape: int) -> Tensor:
    return Tensor(shape, "bool", False)


def make_case(*args: Any, **kwargs: Any) -> Case:
    return Case(args, kwargs)


def op_case(op: str, case: Case) -> tuple[LogicalGraph, Node]:
    """A graph of one node; trained tensors are its parameters, others its inputs."""
    parameters: list[Parameter] = []
    inputs: list[Input] = []
    examples: dict[str, torch.Tensor] = {}

    def name(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(name(item) for item in arg)
        if not isinstance(arg, Tensor):
            return arg
        leaf, meta = f"t{len(examples)}", TensorMeta(arg.shape, arg.dtype)
        examples[leaf] = torch.zeros(arg.shape, dtype=torch_dtype(arg.dtype))
        if arg.trained:
            parameters.append(Parameter(leaf, meta, leaf))
        else:
            inputs.append(Input(leaf, meta, arg.high))
        return Ref(leaf)

    args = tuple(name(arg) for arg in case.args)
    kwargs = {key: name(arg) for key, arg in case.kwargs.items()}
    values = tuple(to_fx_arg(arg, examples) for arg in args)
    result = resolve_op(op)(*values, **{key: to_fx_arg(arg, examples) for key, arg in kwargs.items()})
    outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result)
    metas = tuple(TensorMeta(tuple(out.shape), str(out.dtype).removeprefix("torch.")) for out in outputs)
    node = Node("node", op, args, kwargs, metas)
    return LogicalGraph("case", {}, tuple(parameters), tuple(inputs), (), (node,), Ref("node")), node
