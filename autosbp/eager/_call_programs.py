"""Torch function calls as programs: traced once per function, shapes and layouts, lowered once per process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autosbp.eager._signature_choice import choose_signatures
from autosbp.eager.placement import Placement
from autosbp.errors import UnsupportedError
from autosbp.executor.lowering import lower
from autosbp.graph.eager_calls import CallTensor, Slot, import_call
from autosbp.graph.ir import LogicalGraph, Ref, TensorMeta
from autosbp.plan.plan import Strategy
from autosbp.sbp.layout import B, NdSbp

MAX_KNOWN = 1024
_program_cache: dict[Hashable, CallProgram] = {}


@dataclass(frozen=True, slots=True)
class CallResult:
    """One output tensor of a call."""

    meta: TensorMeta
    layout: NdSbp
    tracked: bool


@dataclass(frozen=True)
class CallProgram:
    """A lowered call.

    ``module`` is this process's program, None outside of the placement; it takes the call's tensors in ``order``.
    ``build`` nests the results as the function does.
    """

    placement: Placement
    strategy: Strategy
    module: torch.fx.GraphModule | None
    order: tuple[int, ...]
    results: tuple[CallResult, ...]
    build: Callable[[Sequence[Any]], Any]

    def run(self, values: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """This process's part of each result, from its parts of the placed operands and the plain (whole) tensors."""
        runtime = self.placement.runtime
        if self.module is None or runtime is None:
            return [None] * len(self.results)
        runtime.step += 1  # new random numbers for each call
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
    """The program of ``func(*args, **kwargs)``, where slots stand for tensors in these layouts; cached."""
    key = (func, _cache_key(args), _cache_key(kwargs), tuple(tensors), placement, id(placement.runtime))
    if key not in _program_cache:
        if len(_program_cache) >= MAX_KNOWN:
            _program_cache.clear()
        _program_cache[key] = _program(func, args, kwargs, tensors, placement)
    return _program_cache[key]


def _program(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[tuple[CallTensor, NdSbp]],
    placement: Placement,
) -> CallProgram:
    call = import_call(func, args, kwargs, [tensor for tensor, _ in tensors])
    graph = call.graph
    given = {name: layout for name, (tensor, layout) in zip(call.leaves, tensors, strict=True) if tensor.is_placed}
    strategy = choose_signatures(graph, given, placement.boxing)
    runtime = placement.runtime
    module = None if runtime is None else lower(graph, strategy, runtime.rank).to(placement.device)
    names = [leaf.name for leaf in graph.parameters] + [leaf.name for leaf in graph.inputs]
    order = tuple(call.leaves.index(name) for name in names)
    results = tuple(_result(graph, strategy, ref) for ref in graph.results)
    return CallProgram(placement, strategy, module, order, results, call.build)


def _result(graph: LogicalGraph, strategy: Strategy, ref: Ref) -> CallResult:
    layout = (B,) * strategy.mesh.ndim
    if ref.name in strategy.signatures:
        layout = strategy.signatures[ref.name].outs[ref.index]
    elif ref.name in strategy.parameters:
        layout = strategy.parameters[ref.name]
    return CallResult(graph.meta(ref), layout, graph.has_gradient(ref))


def _cache_key(arg: Any) -> Hashable:
    """``arg`` as a hashable key, equal for arguments with the same meaning."""
    if isinstance(arg, Slot):
        return arg
    if isinstance(arg, (list, tuple)):
        return type(arg), tuple(_cache_key(item) for item in arg)
    if isinstance(arg, Mapping):
        return dict, tuple((word, _cache_key(item)) for word, item in arg.items())
    if isinstance(arg, slice):
        return slice, _cache_key((arg.start, arg.stop, arg.step))
    if not isinstance(arg, Hashable):
        raise UnsupportedError(f"calls with placed tensors take no arguments of type {type(arg).__name__}")
    return type(arg), arg
