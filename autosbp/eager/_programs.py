"""Calls of torch functions as programs: traced once per function, shapes and layouts, lowered once per process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autosbp.eager._choice import choose
from autosbp.eager.placement import Placement
from autosbp.errors import UnsupportedError
from autosbp.executor.lowering import lower
from autosbp.graph.calls import CallTensor, Slot, import_call
from autosbp.graph.ir import LogicalGraph, Ref, TensorMeta
from autosbp.plan import Strategy
from autosbp.sbp.placement import B, NdSbp

MAX_KNOWN = 1024
_known: dict[Hashable, CallProgram] = {}


@dataclass(frozen=True, slots=True)
class Result:
    """One tensor that a call makes."""

    meta: TensorMeta
    layout: NdSbp
    tracked: bool


@dataclass(frozen=True)
class CallProgram:
    """``module`` is what this process runs, None outside of the placement; it takes the tensors of the call in ``order``.
    ``build`` nests results as the function does."""

    placement: Placement
    strategy: Strategy
    module: torch.fx.GraphModule | None
    order: tuple[int, ...]
    results: tuple[Result, ...]
    build: Callable[[Sequence[Any]], Any]

    def run(self, values: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """This process's part of each result, given its parts of the operands and what is whole."""
        runtime = self.placement.runtime
        if self.module is None or runtime is None:
            return [None] * len(self.results)
        runtime.step += 1  # each call draws other random numbers
        with runtime.active():
            found: Sequence[torch.Tensor] = self.module(*(values[at] for at in self.order))
        return found


def program_of(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[tuple[CallTensor, NdSbp]],
    placement: Placement,
) -> CallProgram:
    """The program of ``func(*args, **kwargs)``, where slots stand for tensors in these layouts; equal calls have one."""
    key = (func, _frozen(args), _frozen(kwargs), tuple(tensors), placement, id(placement.runtime))
    if key not in _known:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        _known[key] = _program(func, args, kwargs, tensors, placement)
    return _known[key]


def _program(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[tuple[CallTensor, NdSbp]],
    placement: Placement,
) -> CallProgram:
    call = import_call(func, args, kwargs, [tensor for tensor, _ in tensors])
    graph = call.graph
    given = {name: layout for name, (tensor, layout) in zip(call.leaves, tensors, strict=True) if tensor.placed}
    strategy = choose(graph, given, placement.boxing)
    runtime = placement.runtime
    module = None if runtime is None else lower(graph, strategy, runtime.rank).to(placement.device)
    names = [leaf.name for leaf in graph.parameters] + [leaf.name for leaf in graph.inputs]
    order = tuple(call.leaves.index(name) for name in names)
    results = tuple(_result(graph, strategy, ref) for ref in graph.results)
    return CallProgram(placement, strategy, module, order, results, call.build)


def _result(graph: LogicalGraph, strategy: Strategy, ref: Ref) -> Result:
    layout = (B,) * strategy.mesh.ndim
    if ref.name in strategy.signatures:
        layout = strategy.signatures[ref.name].outs[ref.index]
    elif ref.name in strategy.parameters:
        layout = strategy.parameters[ref.name]
    return Result(graph.meta(ref), layout, graph.has_gradient(ref))


def _frozen(arg: Any) -> Hashable:
    """``arg`` as a key: equal for arguments that mean the same."""
    if isinstance(arg, Slot):
        return arg
    if isinstance(arg, (list, tuple)):
        return type(arg), tuple(_frozen(item) for item in arg)
    if isinstance(arg, Mapping):
        return dict, tuple((word, _frozen(item)) for word, item in arg.items())
    if isinstance(arg, slice):
        return slice, _frozen((arg.start, arg.stop, arg.step))
    if not isinstance(arg, Hashable):
        raise UnsupportedError(f"an argument of type {type(arg).__name__} has no place in a call of placed tensors")
    return type(arg), arg
