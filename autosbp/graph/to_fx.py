"""A logical graph as an ``fx.GraphModule`` that computes the same numbers as the captured module, wherever torch runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher

from autosbp.errors import GraphError
from autosbp.graph import experts_op
from autosbp.graph.allowed_ops import check_op
from autosbp.graph.constants import decode_bytes, encode_bytes
from autosbp.graph.custom_functions import LIBRARY, known_function
from autosbp.graph.function_ops import function_op
from autosbp.graph.ir import Arg, Constant, DType, LogicalGraph, Parameter, Ref, Sym, TensorMeta


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype for a name of ``ir.DTYPE_BYTES``."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


_MAX_REASON = 300
_libraries: frozenset[str] | None = None


def allow_op_libraries(names: Iterable[str]) -> None:
    """Allow graphs of this process only the custom ops of the libraries ``names``."""
    global _libraries  # noqa: PLW0603 - of the process, as what is imported is
    _libraries = frozenset(names)


def loaded_libraries() -> frozenset[str]:
    """Namespaces of the ops that are registered in this process."""
    return frozenset(name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names())


def resolve_op(name: str) -> Any:
    """The torch op ``NAMESPACE.NAME.OVERLOAD``, which must pass ``check_op`` and be registered in this process.

    Raises:
        GraphError: for any other op.
    """
    check_op(name)
    library, *path = name.split(".")
    if library == "autosbp":
        return experts_op.CUSTOM_OPS[path[0]]
    if library == LIBRARY:
        function = known_function(name)
        if function is None:
            raise GraphError("op", name, "expected a function of a graph of this process")
        return function_op(function, resolve_op)
    known = library == "aten" or _libraries is None or library in _libraries
    op: Any = torch.ops if known else None
    for part in (library, *path):
        op = getattr(op, part, None)
    if not isinstance(op, torch._ops.OpOverload):
        where = f"torch {torch.__version__}" if library == "aten" else f"the library {library}, after importing it"
        raise GraphError("op", name, f"expected an op of {where}")
    if op._schema.is_mutable:
        raise GraphError("op", name, "expected a functional op")
    return op


def is_random(name: str) -> bool:
    """Whether torch tags the op as drawing random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(resolve_op(name), "tags", ())


def constant_tensor(constant: Constant) -> torch.Tensor:
    """The values of a constant."""
    if not constant.meta.num_bytes:
        return torch.empty(constant.meta.sizes, dtype=torch_dtype(constant.meta.dtype))
    data = bytearray(decode_bytes(constant.data, constant.meta.num_bytes))
    return torch.frombuffer(data, dtype=torch_dtype(constant.meta.dtype)).reshape(constant.meta.sizes).clone()


def make_constant(name: str, tensor: torch.Tensor) -> Constant:
    """A constant of the IR with the tensor's values."""
    # A dim of size 1 may have any stride and still count as contiguous; viewing as bytes requires stride 1.
    array = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    data = array.view(torch.uint8) if array.dim() else array.reshape(1).view(torch.uint8)
    return Constant(name, _meta_of(tensor), encode_bytes(data.numpy().tobytes()))


def to_fx_arg(arg: Arg, values: Mapping[str, Any]) -> Any:
    """A bound graph's argument as an fx argument; ``values`` maps names to fx nodes (tuples for several outputs)."""
    if isinstance(arg, Ref):
        value = values[arg.name]
        return value[arg.index] if isinstance(value, (tuple, list)) else value
    if isinstance(arg, DType):
        return torch_dtype(arg.name)
    if isinstance(arg, tuple):
        return [to_fx_arg(item, values) for item in arg]
    if isinstance(arg, Sym):
        raise TypeError(f"argument {arg.expr} is symbolic; bind the graph first")
    return arg


def check_shapes(bound: LogicalGraph) -> None:
    """Run every op of a bound graph on meta tensors, and compare shapes and dtypes with the graph.

    Ops without a meta implementation are not checked.

    Raises:
        GraphError: for a node whose op rejects its arguments, or returns other shapes or dtypes than the node states.
    """
    checked: set[Hashable] = set()
    for node in bound.nodes:
        values = {ref.name: tuple(map(_meta_tensor, bound.metas[ref.name])) for ref in node.refs()}
        given = node.map_args(lambda arg: bound.meta(arg) if isinstance(arg, Ref) else arg)
        key = (given.op, repr(given.args), repr(given.kwargs), node.outputs)
        if key in checked:
            continue
        checked.add(key)
        args = [to_fx_arg(arg, values) for arg in node.args]
        kwargs = {word: to_fx_arg(arg, values) for word, arg in node.kwargs.items()}
        try:
            with enable_python_dispatcher(), torch.no_grad():
                result = resolve_op(node.op)(*args, **kwargs)
        except NotImplementedError:
            continue
        except Exception as error:  # each op rejects arguments with its own error type
            limit = f"expected valid arguments of the op ({str(error)[:_MAX_REASON]})"
            raise GraphError(f"{node.name}.args", node.args, limit) from None
        found = tuple(_meta_of(one) for one in (result if isinstance(result, (list, tuple)) else [result]))
        if found != node.outputs:
            raise GraphError(f"{node.name}.outputs", list(map(str, node.outputs)), f"expected {list(map(str, found))}")


def _meta_tensor(meta: TensorMeta) -> torch.Tensor:
    return torch.empty(meta.sizes, dtype=torch_dtype(meta.dtype), device="meta")


def _meta_of(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def to_graph_module(graph: LogicalGraph) -> torch.fx.GraphModule:
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
        result = fx_graph.call_function(resolve_op(node.op), args, kwargs)
        outputs = len(node.outputs)
        values[node.name] = result if outputs == 1 else tuple(_item(fx_graph, result, at) for at in range(outputs))
    fx_graph.output(to_fx_arg(graph.loss, values))
    fx_graph.lint()
    return torch.fx.GraphModule(root, fx_graph)


def _item(fx_graph: torch.fx.Graph, result: torch.fx.Node, index: int) -> torch.fx.Node:
    return fx_graph.call_function(operator.getitem, (result, index))


def initial_parameter(parameter: Parameter, sources: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A parameter of the graph, sliced from the checkpoint tensor that contains it."""
    tensor = sources[parameter.source]
    for step in parameter.transforms:
        tensor = _TRANSFORMS[step[0]](tensor, *step[1:])
    return tensor.contiguous()


def store_parameter(parameter: Parameter, source: torch.Tensor, value: torch.Tensor) -> None:
    """Write a parameter of the graph to its place in the checkpoint tensor that contains it."""
    place = source
    for kind, *numbers in parameter.transforms:
        if kind == "t":
            place = place.t()
        elif kind == "slice":
            dim, start, stop = numbers
            place = place.narrow(dim, start, stop - start)
        else:
            dim, count, start, stop = numbers
            place = _apart(place, dim, count).narrow(dim + 1, start, stop - start)
            value = _apart(value, dim, count)
    place.copy_(value)


def source_shape(parameters: Sequence[Parameter]) -> tuple[int, ...]:
    """Shape of the checkpoint tensor that consists of these parameters of a graph.

    Raises:
        GraphError: they leave a part of it out.
    """
    shapes = []
    for parameter in parameters:
        shape = list(parameter.meta.sizes)
        for kind, *numbers in reversed(parameter.transforms):
            if kind == "t":
                shape.reverse()
            elif kind == "slice":
                shape[numbers[0]] = numbers[2]
            else:
                shape[numbers[0]] = numbers[1] * numbers[3]
        shapes.append(shape)
    found = tuple(map(max, zip(*shapes, strict=True)))
    if prod(found) != sum(prod(parameter.meta.sizes) for parameter in parameters):
        source = parameters[0].source
        raise GraphError(source, list(found), "the loss reads only a part of this parameter, the graph has no other")
    return found


def _apart(tensor: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """A view with ``count`` equal blocks of a dim in a dim of their own."""
    return tensor.view(*tensor.shape[:dim], count, -1, *tensor.shape[dim + 1 :])


def _blocks(tensor: torch.Tensor, dim: int, count: int, start: int, stop: int) -> torch.Tensor:
    apart = tensor.reshape(*tensor.shape[:dim], count, -1, *tensor.shape[dim + 1 :])
    return apart.narrow(dim + 1, start, stop - start).flatten(dim, dim + 1)


_TRANSFORMS: Mapping[str, Callable[..., torch.Tensor]] = {
    "t": torch.Tensor.t,
    "slice": lambda tensor, dim, start, stop: tensor.narrow(dim, start, stop - start),
    "blocks": _blocks,
}
