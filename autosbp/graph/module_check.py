"""Check of a captured graph against its module: loss and every gradient, on random weights and inputs.

Both run in float64 where the module can; where both differ there (a table of angles that capture has folded in float32,
say), the dtypes of the module itself decide. Weights are drawn, not taken: gradients of layers initialised to zero
would tell nothing.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isfinite, prod, sqrt
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from autosbp.errors import UnsupportedError
from autosbp.graph._scan_capture import recorded_scans, run_steps
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph.ir import FLOATS, LogicalGraph
from autosbp.graph.to_fx import initial_parameter, is_random, to_graph_module, torch_dtype
from autosbp.utils.formatting import num_bytes
from autosbp.utils.resource_limits import free_bytes

CHECKED = "checked"
"""Key of the outcome in a graph's provenance."""
BATCH = 3
"""Batch of the check: not the one that was traced."""
MAX_FLOPS = 5e10
"""Forward FLOPs up to which a check runs: some seconds on two cores."""
MEMORY_SHARE = 0.25
"""Share of the free memory that a check may take."""
_TOLERANCES = {"float64": 1e-6, "float32": 2e-3, "bfloat16": 8e-2, "float16": 2e-2}
_FLOOR = 1e-3
"""Share of the largest gradient below which a gradient counts as rounding noise, except in float64."""
Tensors = Mapping[str, torch.Tensor]


class Float64(TorchFunctionMode):
    """While active, casts to other float dtypes are casts to float64: models cast to float32 in norms and losses."""

    _METHODS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        func = torch.Tensor.double if func in self._METHODS else func
        wide = {key: _widened(value) for key, value in (kwargs or {}).items()}
        return func(*(_widened(value) for value in args), **wide)


def _widened(value: Any) -> Any:
    return torch.float64 if value in (torch.float32, torch.bfloat16, torch.float16) else value


@dataclass(frozen=True)
class ModuleCall:
    """A module with the inputs that it was captured with.

    ``settings`` are arguments that are not tensors. ``highs`` bound integer inputs, exclusive.
    """

    module: torch.nn.Module
    example: Tensors
    settings: Mapping[str, Any]
    highs: Mapping[str, int]


def check_against_module(graph: LogicalGraph, call: ModuleCall) -> str:
    """Compare loss and gradients of graph and module.

    Returns:
        What was found, for the provenance: that they are equal, or why it was not checked.

    Raises:
        UnsupportedError: they differ; names the first parameter and the difference.
    """
    bound = graph.bind(**dict.fromkeys(graph.symbols, BATCH))
    reason = _too_large(bound)
    if reason:
        return f"not checked against the module: {reason}"
    failure = ""
    for dtype in ("float64", ""):
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wanted = _module_results(call, graph, dtype)
        except Exception as error:  # the module runs on inputs that its author has not seen
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}"
            continue
        with torch.random.fork_rng(devices=[]):
            found = _graph_results(bound, wanted, dtype)
        failure = _difference(found, wanted, dtype or _own_dtype(graph))
        if not failure:
            return f"loss and {len(wanted.gradients)} gradients equal the module's ({dtype or 'its own dtypes'})"
    if not failure:
        return f"not checked against the module: it fails on random inputs ({reason})"
    if any(is_random(node.op) for node in bound.nodes):
        return "not checked against the module: it draws random numbers in another order"
    raise UnsupportedError(
        f"the captured graph of {graph.name} is not the module: {failure}; a part of the module that torch.export does not "
        "see, such as a hook on gradients or state outside of tensors, has to become ops; --no-check captures it as it is"
    )


def _too_large(bound: LogicalGraph) -> str:
    """Why the check would take too much memory or time; "" if it would not."""
    wide = 8
    weights = sum(prod(leaf.meta.sizes) for leaf in bound.parameters)
    values = sum(prod(meta.sizes) for node in bound.nodes for meta in node.outputs)
    needed = wide * (5 * weights + 2 * values)
    free = free_bytes()
    if free is not None and needed > MEMORY_SHARE * free:
        return f"it takes about {num_bytes(needed)}"
    flops = _flops(bound)
    return f"a forward pass takes {flops:.1e} FLOPs, more than {MAX_FLOPS:.0e}" if flops > MAX_FLOPS else ""


def _flops(bound: LogicalGraph) -> float:
    """FLOPs of the forward pass, as torch counts them on tensors without data; 0 if an op does not run on those."""
    metas = [leaf.meta for leaf in bound.parameters] + [leaf.meta for leaf in bound.inputs]
    tensors = [torch.empty(meta.sizes, dtype=torch_dtype(meta.dtype), device="meta") for meta in metas]
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            to_graph_module(bound).to("meta")(*tensors)
    except Exception:  # ops without a meta implementation, of a user's library
        return 0.0
    return float(counter.get_total_flops())


@dataclass
class _Results:
    """Weights, batch, loss and gradients of a run of the module."""

    weights: dict[str, torch.Tensor]
    batch: dict[str, torch.Tensor]
    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]


def _own_dtype(graph: LogicalGraph) -> str:
    """The least precise float dtype of the graph."""
    found = {leaf.meta.dtype for leaf in graph.leaves} | {meta.dtype for node in graph.nodes for meta in node.outputs}
    return max(found & set(_TOLERANCES), key=lambda name: _TOLERANCES[name], default="float32")


def _wide(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    return tensor.to(torch_dtype(dtype)) if dtype and tensor.is_floating_point() else tensor


def _mode(dtype: str) -> AbstractContextManager[Any]:
    return Float64() if dtype == "float64" else nullcontext()


_RANGES: Sequence[Callable[[torch.Tensor], torch.Tensor]] = (
    lambda normal: normal,
    lambda normal: normal.abs() + 0.5,
    lambda normal: 0.05 + 0.9 * normal.sigmoid(),
)
"""Maps from normal numbers to what inputs may have to be: any numbers, positive ones, probabilities."""


def _module_results(call: ModuleCall, graph: LogicalGraph, dtype: str) -> _Results:
    """Run a copy of the module forward and backward; raises what it raises on the last kind of inputs."""
    failure: Exception = ValueError("its loss is not finite")
    for lie in _RANGES:
        module = _copy(call.module, dtype)
        weights = {name: each.detach().clone() for name, each in module.named_parameters()}
        batch = _random_batch(call, graph, lie, dtype)
        torch.manual_seed(7)
        try:
            with _mode(dtype), recorded_scans(run_steps):
                loss = first_output(module(**batch, **call.settings))
                loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # code of users raises errors of many types
            failure = error
            continue
        if isfinite(float(loss.detach())):
            gradients = {
                name: torch.zeros_like(each) if each.grad is None else each.grad
                for name, each in module.named_parameters()
                if each.requires_grad
            }
            return _Results(weights, batch, loss.detach(), gradients)
    raise failure


def first_output(returned: Any) -> torch.Tensor:
    """The loss among what a module returns: its first output, as capture takes it."""
    leaves = torch.utils._pytree.tree_leaves(returned)
    loss = next(leaf for leaf in leaves if leaf is not None)
    if not isinstance(loss, torch.Tensor):
        raise TypeError("its first output is not a tensor")
    scalar: torch.Tensor = loss.reshape(())
    return scalar


def _copy(module: torch.nn.Module, dtype: str) -> torch.nn.Module:
    """A copy with drawn weights; buffers and tensor attributes keep their values."""
    generator = torch.Generator().manual_seed(0)
    memo: dict[int, Any] = {}
    for part in module.modules():
        for tensor in (*part._parameters.values(), *part._buffers.values(), *vars(part).values()):
            if isinstance(tensor, torch.nn.Parameter) and id(tensor) not in memo:
                drawn = torch.nn.Parameter(_wide(_drawn(tensor, generator), dtype), requires_grad=tensor.requires_grad)
                for hook in (tensor._backward_hooks or {}).values():
                    drawn.register_hook(hook)  # type: ignore[no-untyped-call]
                memo[id(tensor)] = drawn
            elif isinstance(tensor, torch.Tensor) and id(tensor) not in memo:
                memo[id(tensor)] = _wide(tensor.detach().clone(), dtype)
    return copy.deepcopy(module, memo)


def _drawn(parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Weights of the size that initialisations give them: scales near 1, matrices by their fan-in."""
    if not parameter.is_floating_point():
        return torch.zeros(parameter.shape, dtype=parameter.dtype)
    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    if parameter.dim() < 2:
        return (1.0 + 0.1 * noise).to(parameter.dtype)
    return (noise / sqrt(prod(parameter.shape[1:]))).to(parameter.dtype)


def _random_batch(
    call: ModuleCall, graph: LogicalGraph, lie: Callable[[torch.Tensor], torch.Tensor], dtype: str
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    bounds = {leaf.name: leaf.high for leaf in graph.inputs}
    found = {}
    for name, example in call.example.items():
        shape = (BATCH, *example.shape[1:])
        if example.is_floating_point():
            normal = torch.randn(shape, generator=generator, dtype=torch.float64)
            found[name] = _wide(lie(normal).to(example.dtype), dtype)
        else:
            high = 2 if example.dtype == torch.bool else bounds.get(name) or call.highs.get(name) or 2
            found[name] = torch.randint(high, shape, generator=generator).to(example.dtype)
    return found


def _graph_results(bound: LogicalGraph, wanted: _Results, dtype: str) -> _Results:
    """Run the graph with the module's weights and batch."""
    if dtype:
        for old in FLOATS - {dtype}:
            bound = cast_floats(bound, old, dtype)
    sources = {name: each.clone().requires_grad_(name in wanted.gradients) for name, each in wanted.weights.items()}
    parameters = [initial_parameter(leaf, sources) for leaf in bound.parameters]
    torch.manual_seed(7)
    loss = to_graph_module(bound)(*parameters, *(wanted.batch[leaf.name] for leaf in bound.inputs))
    names = list(wanted.gradients)
    found = (
        torch.autograd.grad(loss, [sources[name] for name in names], allow_unused=True) if loss.requires_grad else ()
    )
    gradients = {
        name: torch.zeros_like(sources[name]) if each is None else each
        for name, each in zip(names, found or [None] * len(names), strict=True)
    }
    return _Results(wanted.weights, wanted.batch, loss.detach(), gradients)


def _difference(found: _Results, wanted: _Results, dtype: str) -> str:
    """The first of loss and gradients that differs, in words; "" if none does."""
    tolerance = _TOLERANCES[dtype]
    if not _is_near(found.loss, wanted.loss, tolerance, 0.0):
        return f"its loss is {float(found.loss):.9g}, the module's {float(wanted.loss):.9g} (weights and inputs drawn)"
    largest = max((float(each.abs().max()) for each in wanted.gradients.values() if each.numel()), default=0.0)
    for name, gradient in wanted.gradients.items():
        if not _is_near(found.gradients[name], gradient, tolerance, largest * (1e-6 if dtype == "float64" else _FLOOR)):
            off = float((found.gradients[name].double() - gradient.double()).abs().max())
            scale = float(gradient.abs().max())
            return f"the gradient of {name} differs by {off:.3g} where the module's is up to {scale:.3g}"
    return ""


def _is_near(one: torch.Tensor, two: torch.Tensor, tolerance: float, floor: float) -> bool:
    if not two.numel():
        return True
    limit = tolerance * max(float(two.abs().max()), floor)
    return bool(((one.double() - two.double()).abs() <= limit).all() | (one.double() == two.double()).all())
