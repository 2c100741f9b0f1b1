"""Convert one call of a torch function to nodes of the IR, traced like a model and through the same import passes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import export
from torch.utils import _pytree as pytree  # private, but the only pytree that knows torch's named tuples

from autosbp.errors import UnsupportedError
from autosbp.graph._capture_errors import explain_failure
from autosbp.graph._exported_program import functionalize
from autosbp.graph._function_capture import functions_as_ops
from autosbp.graph._importer import Importer
from autosbp.graph._tracing import FakeTensors
from autosbp.graph.ir import LogicalGraph, Parameter, Ref, TensorMeta
from autosbp.graph.passes import canonicalise
from autosbp.graph.to_fx import torch_dtype

_RESULTS = "autosbp.results.default"


@dataclass(frozen=True, slots=True)
class Slot:
    """The position of a tensor among the arguments of a call."""

    index: int


@dataclass(frozen=True, slots=True)
class CallTensor:
    """A tensor argument of a call.

    A ``placed`` tensor has an SBP layout and becomes a parameter of the graph, ``tracked`` if a gradient flows into it.
    Others are inputs, replicated on every rank.
    """

    meta: TensorMeta
    is_placed: bool
    tracked: bool


@dataclass(frozen=True)
class CallGraph:
    """The graph of a call.

    ``leaves`` are the call's tensor arguments, in order. ``build`` makes the call's result from the tensors that
    ``graph.results`` refer to.
    """

    graph: LogicalGraph
    leaves: tuple[str, ...]
    build: Callable[[Sequence[Any]], Any]


def fill_slots(arg: Any, tensors: Sequence[Any]) -> Any:
    """``arg`` with every slot replaced by its tensor."""
    if isinstance(arg, Slot):
        return tensors[arg.index]
    if isinstance(arg, (list, tuple)):
        items = [fill_slots(item, tensors) for item in arg]
        return tuple(items) if isinstance(arg, tuple) else items
    if isinstance(arg, slice):
        return slice(*(fill_slots(end, tensors) for end in (arg.start, arg.stop, arg.step)))
    return {key: fill_slots(item, tensors) for key, item in arg.items()} if isinstance(arg, dict) else arg


def import_call(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[CallTensor],
) -> CallGraph:
    """Trace ``func(*args, **kwargs)``, whose tensor arguments are given as slots.

    Raises:
        UnsupportedError: for what models may not do either (data-dependent shapes, in-place changes), and for calls
            whose result holds no tensor.
    """
    name = getattr(func, "__name__", str(func))
    fakes = FakeTensors()
    examples = tuple(
        fakes.tensor(torch.empty(each.meta.sizes, dtype=torch_dtype(each.meta.dtype), device="meta"))
        for each in tensors
    )
    program = _Program(func, args, kwargs)
    try:
        with warnings.catch_warnings(), functions_as_ops() as functions:
            warnings.simplefilter("ignore")
            exported = functionalize(export(program, examples, strict=False))
    except UnsupportedError:
        raise
    except Exception as error:  # export raises errors of many types
        raise UnsupportedError(explain_failure(name, error)) from error
    if not any(leaf is _TENSOR for leaf in program.seen.leaves):
        raise UnsupportedError(f"{name} returns no tensor; call it on the plain tensor that .full() returns")
    results = _Results(program, exported, {}, functions.calls)
    return _call_graph(canonicalise(results.run(name, {}), results.lines), program.seen, tensors)


_TENSOR = object()


@dataclass
class _TracedResult:
    """Result of a traced call: its leaves, with tensors replaced by a marker, and their nesting."""

    leaves: Sequence[Any] = ()
    spec: Any = None


class _Program(torch.nn.Module):
    """The call as a module that maps tensors to the tensors of its result."""

    def __init__(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.call = (func, tuple(args), dict(kwargs))
        self.seen = _TracedResult()

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        func, args, kwargs = self.call
        leaves, self.seen.spec = pytree.tree_flatten(func(*fill_slots(args, tensors), **fill_slots(kwargs, tensors)))
        self.seen.leaves = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


class _Results(Importer):
    """Imports a program with any outputs.

    A final node takes the place of the loss. It refers to all outputs, and to an input, so that it is not folded as a
    constant.
    """

    def _loss(self, name: str, outputs: tuple[Any, ...]) -> Ref:  # noqa: ARG002 - the base's signature
        first = next(node for node in self.program.graph.nodes if node.op == "placeholder")
        refs = tuple(self._arg(each) for each in (*outputs, first))
        return self._add(_RESULTS, refs, {}, (TensorMeta((), "float32"),))


def _call_graph(graph: LogicalGraph, seen: _TracedResult, tensors: Sequence[CallTensor]) -> CallGraph:
    graph = graph.bind(**graph.symbols)
    last = next(node for node in graph.nodes if node.op == _RESULTS)
    results = tuple(last.refs())[:-1]
    leaves = tuple(leaf.name for leaf in graph.inputs)
    placed = {name: each.tracked for name, each in zip(leaves, tensors, strict=True) if each.is_placed}
    graph = replace(
        graph,
        nodes=tuple(node for node in graph.nodes if node is not last),
        parameters=tuple(
            Parameter(leaf.name, leaf.meta, leaf.name, trained=placed[leaf.name])
            for leaf in graph.inputs
            if leaf.name in placed
        ),
        inputs=tuple(leaf for leaf in graph.inputs if leaf.name not in placed),
        loss=results[0],
        results=results,
    )

    def build(values: Sequence[Any]) -> Any:
        given = iter(values)
        return pytree.tree_unflatten([next(given) if leaf is _TENSOR else leaf for leaf in seen.leaves], seen.spec)

    return CallGraph(graph, leaves, build)
