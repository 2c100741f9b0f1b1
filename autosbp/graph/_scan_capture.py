"""Capture of torch's ``scan`` (``torch._higher_order_ops``): one op whose body is a step.

torch would trace the step without its backward, at the sizes of the example. Here the call is recorded; its step and the
step's derivative are traced into one body with sizes that follow the arguments. Tensors that the step reads from outside,
such as parameters, become arguments that every step reads whole.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from autosbp.errors import UnsupportedError
from autosbp.graph.allowed_ops import ALLOWED_OPS

Tensors = Sequence[torch.Tensor]
_MODULE, _RUNNER = "torch._higher_order_ops.scan", "_maybe_compile_and_run_fn"


@dataclass
class ScanCall:
    """One recorded scan: its step, which takes states and slices, and the tensors that it reads besides."""

    step: Callable[..., Any]
    carries: int
    slices: int
    lifted: list[torch.Tensor]
    structure: Any

    @property
    def label(self) -> str:
        name = str(getattr(_function_of(self.step), "__qualname__", "scan")).replace("<locals>.", "")
        return re.sub(r"\W+", "_", name).strip("_")[-128:]

    @property
    def where(self) -> str:
        """The step's function and the line of its source."""
        step = _function_of(self.step)
        try:
            return f'the scan over {step.__qualname__} at File "{inspect.getsourcefile(step)}", line {inspect.getsourcelines(step)[1]}'
        except (OSError, TypeError, AttributeError):
            return "a scan"

    def refuse(self, reason: str) -> UnsupportedError:
        """The error for a scan that cannot be an op."""
        return UnsupportedError(
            f"{self.where} cannot be captured: {reason}; its step has to be a pure function of tensors, whose sizes come "
            "from its arguments"
        )

    def outputs(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """Next states and results of one step."""
        count = self.carries + self.slices
        with _Replaced(dict(zip(map(id, self.lifted), tensors[count:], strict=True))):
            found = tuple(pytree.tree_leaves(self.step(*tensors[:count])))
        if not all(isinstance(out, torch.Tensor) for out in found):
            raise self.refuse("its step returns other things than tensors")
        for state, out in zip(tensors[: self.carries], found[: self.carries], strict=True):
            if state.shape != out.shape or state.dtype != out.dtype:
                raise self.refuse(
                    f"a state of {state.dtype} {list(state.shape)} becomes one of {out.dtype} {list(out.shape)}"
                )
        return found

    def passes(
        self, tensors: Tensors, incoming: Tensors
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor | None], Sequence[int]]:
        """Outputs of one step, gradients of its arguments for ``incoming`` ones, and places of outputs without one."""
        leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
        with torch.enable_grad():
            outputs = self.outputs(leaves)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        pairs = [(out, given) for out, given in zip(outputs, incoming, strict=True) if out.requires_grad]
        if not pairs:
            raise self.refuse("no result of its step depends on its arguments")
        outs, given = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(outs, wanted, given, allow_unused=True))
        return outputs, [next(found) if leaf.requires_grad else None for leaf in leaves], []

    def step_arguments(self, tensors: Tensors) -> list[torch.Tensor]:
        """Arguments of the first step, of those of the scan."""
        sliced = range(self.carries, self.carries + self.slices)
        return [tensor[0] if at in sliced else tensor for at, tensor in enumerate(tensors)]

    def stacked(self, tensors: Tensors) -> list[torch.Tensor]:
        """Last states and stacked results, without values."""
        length = tensors[self.carries].shape[0]
        with torch.no_grad():
            outputs = self.outputs(self.step_arguments(tensors))
        states = [torch.empty_like(out) for out in outputs[: self.carries]]
        return states + [out.new_empty((length, *out.shape)) for out in outputs[self.carries :]]


def scan_call(step: Callable[..., Any], init: Tensors, slices: Tensors) -> ScanCall:
    """The record of a scan; runs its step once to see what it reads and returns."""
    arguments = [*init, *(tensor.select(0, 0) for tensor in slices)]
    with torch.no_grad(), _Outside(arguments) as outside:
        structure = pytree.tree_structure(step(*arguments))
    return ScanCall(step, len(init), len(slices), list(outside.found.values()), structure)


class _Outside(TorchFunctionMode):
    """Collects the tensors that functions read, unless they are among ``known`` or results of functions."""

    def __init__(self, known: Tensors) -> None:
        super().__init__()
        self.known = {id(tensor): tensor for tensor in known}
        self.found: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in self.known:
                self.found[id(leaf)] = leaf
        result = func(*args, **(kwargs or {}))
        self.known.update((id(leaf), leaf) for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result


class _Replaced(TorchFunctionMode):
    """Functions read other tensors in place of those with these ids."""

    def __init__(self, others: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self.others = others

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = pytree.tree_map(lambda leaf: self.others.get(id(leaf), leaf), (args, kwargs or {}))
        return func(*args, **kwargs)


@contextmanager
def recorded_scans(record: Callable[..., Any]) -> Iterator[None]:
    """While active, ``record(run, step, init, slices)`` takes the place of each flattened scan."""
    module = importlib.import_module(_MODULE)  # which torch's package hides behind a function of the same name
    original = getattr(module, _RUNNER)
    setattr(module, _RUNNER, record)
    try:
        yield
    finally:
        setattr(module, _RUNNER, original)


@lru_cache(maxsize=1)
def backward_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """torch's decompositions of the ops that graphs may not name, such as backward ops."""

    def name(op: Any) -> str:
        return f"{op.namespace}.{op._schema.name.split('::')[1]}.{op._overloadname or 'default'}"

    ops = [op for op in decomposition_table if isinstance(op, torch._ops.OpOverload)]
    found = {op: decomposition_table[op] for op in ops if name(op) not in ALLOWED_OPS}
    return {**found, torch.ops.aten.copy.default: _copy}


def _copy(to: torch.Tensor, source: torch.Tensor, _: bool = False) -> torch.Tensor:
    """What a tensor holds after ``to.copy_(source)``."""
    return source.to(to.dtype).expand_as(to)


def _function_of(step: Any) -> Any:
    """The user's function within torch's partial applications."""
    while isinstance(step, functools.partial):
        step = step.keywords.get("combine_fn", step.func)
    return step
