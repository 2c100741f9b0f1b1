"""One call of a torch function as nodes of the IR: traced like a model, and through the same import passes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import export
from torch.utils import _pytree as pytree  # private, but the one that knows torch's named tuples

from autosbp.errors import UnsupportedError
from autosbp.graph._importer import Importer
from autosbp.graph._program import prepared
from autosbp.graph._refusals import explain_failure
from autosbp.graph._tracing import Fakes
from autosbp.graph.ir import LogicalGraph, Parameter, Ref, TensorMeta
from autosbp.graph.materialise import dtype_of
from autosbp.graph.passes import canonicalise

_RESULTS = "autosbp.results.default"


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a tensor among the arguments of a call."""

    index: int


@dataclass(frozen=True, slots=True)
class CallTensor:
    """A tensor of a call. One that is ``placed`` has a layout: it is a parameter of the graph, ``tracked`` where a gradient
    flows into it. Others are inputs, whole on every rank."""

    meta: TensorMeta
    placed: bool
    tracked: bool


@dataclass(frozen=True)
class CallGraph:
    """``leaves`` are the tensors of the call, in order. What the call returns is ``build`` of the tensors that
    ``graph.results`` refer to."""

    graph: LogicalGraph
    leaves: tuple[str, ...]
    build: Callable[[Sequence[Any]], Any]


def fill(arg: Any, tensors: Sequence[Any]) -> Any:
    """``arg`` with a tensor in the place of every slot."""
    if isinstance(arg, Slot):
        return tensors[arg.index]
    if isinstance(arg, (list, tuple)):
        items = [fill(item, tensors) for item in arg]
        return tuple(items) if isinstance(arg, tuple) else items
    if isinstance(arg, slice):
        return slice(*(fill(end, tensors) for end in (arg.start, arg.stop, arg.step)))
    return {key: fill(item, tensors) for key, item in arg.items()} if isinstance(arg, dict) else arg


def import_call(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[CallTensor],
) -> CallGraph:
    """``func(*args, **kwargs)`` where slots stand for tensors.

    Raises:
        UnsupportedError: what no model may do either (values that shapes depend on, changes in place), and calls whose
            result is no tensor.
    """
    name = getattr(func, "__name__", str(func))
    fakes = Fakes()
    examples = tuple(
        fakes.tensor(torch.empty(each.meta.sizes, dtype=dtype_of(each.meta.dtype), device="meta")) for each in tensors
    )
    program = _Program(func, args, kwargs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = prepared(export(program, examples, strict=False))
    except Exception as error:  # export fails with errors of many types
        raise UnsupportedError(explain_failure(name, error)) from error
    if not any(leaf is _TENSOR for leaf in program.seen.leaves):
        raise UnsupportedError(f"{name} gives no tensor; .full() gives a plain one, which it may be called on")
    return _without_ends(canonicalise(_Results(program, exported, {}).run(name, {})), program.seen, tensors)


_TENSOR = object()


@dataclass
class _Seen:
    """What a traced call returned: its leaves, with tensors marked, and how they are nested."""

    leaves: Sequence[Any] = ()
    spec: Any = None


class _Program(torch.nn.Module):
    """The call as a module from tensors to the tensors of its result."""

    def __init__(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.call = (func, tuple(args), dict(kwargs))
        self.seen = _Seen()

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        func, args, kwargs = self.call
        leaves, self.seen.spec = pytree.tree_flatten(func(*fill(args, tensors), **fill(kwargs, tensors)))
        self.seen.leaves = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


class _Results(Importer):
    """Imports a program of any outputs: a last node, in the place of a loss, refers to all of them, and to an input, so
    that it is no constant."""

    def _loss(self, name: str, outputs: tuple[Any, ...]) -> Ref:  # noqa: ARG002 - the base's signature
        first = next(node for node in self.program.graph.nodes if node.op == "placeholder")
        refs = tuple(self._arg(each) for each in (*outputs, first))
        return self._add(_RESULTS, refs, {}, (TensorMeta((), "float32"),))


def _without_ends(graph: LogicalGraph, seen: _Seen, tensors: Sequence[CallTensor]) -> CallGraph:
    graph = graph.bind(**graph.symbols)
    last = next(node for node in graph.nodes if node.op == _RESULTS)
    results = tuple(last.refs())[:-1]
    leaves = tuple(leaf.name for leaf in graph.inputs)
    placed = {name: each.tracked for name, each in zip(leaves, tensors, strict=True) if each.placed}
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
