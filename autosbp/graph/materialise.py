"""A logical graph as an ``fx.GraphModule``: the same numbers as the captured module, anywhere torch runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from autosbp.errors import GraphError
from autosbp.graph.constants import decode_bytes, encode_bytes
from autosbp.graph.ir import Arg, Constant, DType, LogicalGraph, Parameter, Ref, Sym, TensorMeta
from autosbp.graph.own_ops import OWN_OPS


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a name of ``ir.DTYPE_BYTES``."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


_TORCH_INTERNAL = frozenset(
    ("prim", "prims", "c10d", "_c10d_functional", "c10d_functional", "_dtensor", "symm_mem", "inductor", "profiler",
     "debugprims", "rngprims", "higher_order", "quantized", "_quantized", "mkldnn", "mkldnn_prepacked", "mkl", "xnnpack",
     "prepacked", "streams")
)  # fmt: skip
_TOUCHES_FILES = frozenset(("from_file",))


def op_of(name: str) -> Any:
    """The torch op of ``NAMESPACE.NAME.OVERLOAD``: a functional one of ATen, our own, or of a library of custom ops
    that the caller has imported. Anything else is a ``GraphError``: a document must not reach files or process groups."""
    parts = name.split(".")
    if len(parts) != 3 or not all(part.isidentifier() for part in parts) or parts[0] in _TORCH_INTERNAL:
        raise GraphError("op", name, "NAMESPACE.NAME.OVERLOAD is expected, of aten or of a library of custom ops")
    if parts[0] == "autosbp" and parts[1] in OWN_OPS:
        return OWN_OPS[parts[1]]
    try:
        op = getattr(getattr(getattr(torch.ops, parts[0]), parts[1]), parts[2])
        if not isinstance(op, torch._ops.OpOverload):
            raise AttributeError(name)
    except AttributeError:
        where = (
            f"torch {torch.__version__}" if parts[0] == "aten" else f"the library of {parts[0]}, once it is imported"
        )
        raise GraphError("op", name, f"an op of {where} is expected") from None
    if op._schema.is_mutable or parts[1] in _TOUCHES_FILES:
        raise GraphError("op", name, "an op that changes nothing and reads only its arguments is expected")
    return op


def is_random(name: str) -> bool:
    """Whether torch says that an op draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(op_of(name), "tags", ())


def constant_tensor(constant: Constant) -> torch.Tensor:
    """The values of a constant."""
    data = bytearray(decode_bytes(constant.data, constant.meta.num_bytes))
    return torch.frombuffer(data, dtype=dtype_of(constant.meta.dtype)).reshape(constant.meta.sizes).clone()


def make_constant(name: str, tensor: torch.Tensor) -> Constant:
    """A constant of the IR with the tensor's values."""
    # A size-1 dim may have any stride and count as contiguous; a view as bytes needs it to be 1.
    array = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    data = array.view(torch.uint8) if array.dim() else array.reshape(1).view(torch.uint8)
    meta = TensorMeta(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    return Constant(name, meta, encode_bytes(data.numpy().tobytes()))


def to_fx_arg(arg: Arg, values: Mapping[str, Any]) -> Any:
    """A bound graph's argument as an fx argument; ``values`` maps names to fx nodes (tuples for several outputs)."""
    if isinstance(arg, Ref):
        value = values[arg.name]
        return value[arg.index] if isinstance(value, (tuple, list)) else value
    if isinstance(arg, DType):
        return dtype_of(arg.name)
    if isinstance(arg, tuple):
        return [to_fx_arg(item, values) for item in arg]
    if isinstance(arg, Sym):
        raise TypeError(f"the argument {arg.expr} is symbolic; bind the graph first")
    return arg


def materialise(graph: LogicalGraph) -> torch.fx.GraphModule:
    """The bound graph as a module called with (parameters, inputs) in the graph's order; it returns the loss."""
    fx_graph = torch.fx.Graph()
    root = torch.nn.Module()
    values: dict[str, Any] = {}
    names = [leaf.name for leaf in graph.parameters] + [leaf.name for leaf in graph.inputs]
    for name in names:
        values[name] = fx_graph.placeholder(name.replace(".", "_"))
    for index, constant in enumerate(graph.constants):
        attribute = f"constant_{index}"
        root.register_buffer(attribute, constant_tensor(constant), persistent=False)
        values[constant.name] = fx_graph.get_attr(attribute)
    for node in graph.nodes:
        args = tuple(to_fx_arg(arg, values) for arg in node.args)
        kwargs = {key: to_fx_arg(arg, values) for key, arg in node.kwargs.items()}
        result = fx_graph.call_function(op_of(node.op), args, kwargs)
        outputs = len(node.outputs)
        values[node.name] = result if outputs == 1 else tuple(_item(fx_graph, result, at) for at in range(outputs))
    fx_graph.output(to_fx_arg(graph.loss, values))
    fx_graph.lint()
    return torch.fx.GraphModule(root, fx_graph)


def _item(fx_graph: torch.fx.Graph, result: torch.fx.Node, index: int) -> torch.fx.Node:
    return fx_graph.call_function(operator.getitem, (result, index))


def initial_parameter(parameter: Parameter, sources: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The graph's parameter cut out of the checkpoint's tensor that it is a part of."""
    tensor = sources[parameter.source]
    for step in parameter.transforms:
        tensor = _TRANSFORMS[step[0]](tensor, *step[1:])
    return tensor.contiguous()


def _blocks(tensor: torch.Tensor, dim: int, count: int, start: int, stop: int) -> torch.Tensor:
    apart = tensor.reshape(*tensor.shape[:dim], count, -1, *tensor.shape[dim + 1 :])
    return apart.narrow(dim + 1, start, stop - start).flatten(dim, dim + 1)


_TRANSFORMS: Mapping[str, Callable[..., torch.Tensor]] = {
    "t": torch.Tensor.t,
    "slice": lambda tensor, dim, start, stop: tensor.narrow(dim, start, stop - start),
    "blocks": _blocks,
}
