"""Capture of torch's ``scan`` and ``associative_scan`` (``torch._higher_order_ops``) as one op whose body is a step.

torch would trace the step without its backward pass, and with the sizes of the example inputs. Here the call is recorded
instead, and the step and its derivative are traced into one body with symbolic sizes. Tensors that the step reads from
its closure, such as parameters, become additional arguments, which every step reads whole.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import torch
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from autosbp.errors import UnsupportedError
from autosbp.graph.allowed_ops import ALLOWED_OPS

Tensors = Sequence[torch.Tensor]


@dataclass
class ScanCall:
    """A recorded scan.

    Args:
        step: function of one step, which takes ``carries`` states and ``slices`` slices.
        carries: number of states.
        slices: number of scanned tensors.
        lifted: tensors that the step reads from its closure.
        structure: pytree structure of the step's outputs.
        computation: key that is equal for calls with the same body and tensors of the same shapes.
    """

    step: Callable[..., Any]
    carries: int
    slices: int
    lifted: list[torch.Tensor]
    structure: Any
    computation: Hashable

    @property
    def label(self) -> str:
        """Name of the scan's op."""
        return step_label(self.step)

    @property
    def where(self) -> str:
        """The step's function, source file and line, for errors."""
        step = _function_of(self.step)
        try:
            file, line = inspect.getsourcefile(step), inspect.getsourcelines(step)[1]
            return f'the scan over {step.__qualname__} at File "{file}", line {line}'
        except (OSError, TypeError, AttributeError):
            return "a scan"

    def refuse(self, reason: str) -> UnsupportedError:
        """The error for a scan that cannot be captured."""
        return UnsupportedError(
            f"{self.where} cannot be captured: {reason}; its step has to be a pure function of tensors, whose sizes come "
            "from its arguments"
        )

    def outputs(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """Next states and outputs of one step."""
        count = self.carries + self.slices
        with _Outside(tensors, tensors[count:]):
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
        """Forward and backward pass of one step.

        Args:
            tensors: arguments of the step.
            incoming: gradients of the outputs.

        Returns:
            The outputs, the gradients of the arguments, and the indices of outputs without a gradient (none).
        """
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
        """Arguments of the first step, taken from the arguments of the scan."""
        sliced = range(self.carries, self.carries + self.slices)
        return [tensor[0] if at in sliced else tensor for at, tensor in enumerate(tensors)]

    def stacked(self, tensors: Tensors) -> list[torch.Tensor]:
        """Last states and stacked outputs of the scan, as uninitialised tensors."""
        length = tensors[self.carries].shape[0]
        with torch.no_grad():
            outputs = self.outputs(self.step_arguments(tensors))
        states = [torch.empty_like(out) for out in outputs[: self.carries]]
        return states + [out.new_empty((length, *out.shape)) for out in outputs[self.carries :]]


def step_label(step: Callable[..., Any]) -> str:
    """Name of a scan's op, made from the name of the step's function."""
    name = str(getattr(_function_of(step), "__qualname__", "scan")).replace("<locals>.", "")
    return re.sub(r"\W+", "_", name).strip("_")[-128:]


def scan_call(step: Callable[..., Any], init: Tensors, slices: Tensors) -> ScanCall:
    """Record a scan; runs its step once to find the tensors that it reads and returns."""
    arguments = [*init, *(tensor.select(0, 0) for tensor in slices)]
    with torch.no_grad(), _Outside(arguments) as outside:
        outputs, structure = pytree.tree_flatten(step(*arguments))
        computation = (step_label(step), *outside.calls, *map(outside.named, outputs))
    return ScanCall(step, len(init), len(slices), list(outside.found.values()), structure, computation)


class _Outside(TorchFunctionMode):
    """Collects the tensors that torch functions read from a closure: neither in ``known`` nor a result of a function.

    If ``others`` is given, these replace the collected tensors, in the order of first use. ``calls`` records every
    function call with its arguments, where tensors are numbers, so that equal computations can be recognised.
    """

    def __init__(self, known: Tensors, others: Tensors | None = None) -> None:
        super().__init__()
        self.known = {id(tensor): tensor for tensor in known}
        self.found: dict[int, torch.Tensor] = {}
        self.others = others
        self.calls: list[Hashable] = []
        self.numbers = {id(tensor): at for at, tensor in enumerate(known)}

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = pytree.tree_map(self._read, (args, kwargs or {}))
        leaves, structure = pytree.tree_flatten((args, kwargs))
        self.calls.append((func, str(structure), *map(self.named, leaves)))
        result = func(*args, **kwargs)
        self.known.update((id(leaf), leaf) for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result

    def named(self, leaf: Any) -> Hashable:
        """Number of a tensor, or the text of another argument."""
        if isinstance(leaf, torch.Tensor):
            return self.numbers.setdefault(id(leaf), len(self.numbers))
        return str(leaf.node.expr) if isinstance(leaf, torch.SymInt) else repr(leaf)

    def _read(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or id(leaf) in self.known:
            return leaf
        place = list(self.found).index(id(leaf)) if id(leaf) in self.found else len(self.found)
        self.found[id(leaf)] = leaf
        return leaf if self.others is None else self.others[place]


@contextmanager
def recorded_scans(record: Callable[..., Any]) -> Iterator[None]:
    """While active, ``record(step, init, slices)`` replaces every scan and associative scan with flattened arguments.

    ``record`` has to return the last states and stacked outputs in the structure of the step's own results.
    """

    def associative(operator: functools.partial[Any], leaves: Tensors, **_: Any) -> list[torch.Tensor]:
        of_pair = inspect.getclosurevars(operator.keywords["combine_fn"]).nonlocals["func"]  # the function below vmap
        given = {**operator.keywords, "combine_fn": of_pair}
        step = functools.partial(_combined, combine_fn=functools.partial(operator.func, **given))
        first, others = [each[:1] for each in leaves], [each[1:] for each in leaves]
        if len(leaves[0]) == 1:
            return first
        _, found = record(step, [each.squeeze(0) for each in first], others)
        return [torch.cat(pair) for pair in zip(first, found, strict=True)]

    # Import the modules by name: in torch's package, functions of the same names shadow them.
    plain, reducing = (
        importlib.import_module(f"torch._higher_order_ops.{name}") for name in ("scan", "associative_scan")
    )
    with (
        patch.object(plain, "_maybe_compile_and_run_fn", lambda _, *given: record(*given)),
        patch.object(reducing, "generic_associative_scan", associative),
    ):
        yield


def _combined(*tensors: torch.Tensor, combine_fn: Callable[..., Any]) -> Any:
    """One step of an associative scan, whose outputs are also its next states."""
    found = pytree.tree_leaves(combine_fn(*tensors))
    return found, found


def run_steps(step: Callable[..., Any], init: Tensors, slices: Tensors) -> Any:
    """Run a flattened scan step by step, without torch's compiler."""
    states, found, structure = list(init), [], None
    for at in range(len(slices[0])):
        leaves, structure = pytree.tree_flatten(step(*states, *(each[at] for each in slices)))
        states, results = leaves[: len(init)], leaves[len(init) :]
        found.append(results)
    assert structure is not None  # noqa: S101 - torch refuses scans without steps
    return pytree.tree_unflatten([*states, *map(torch.stack, zip(*found, strict=True))], structure)


@lru_cache(maxsize=1)
def backward_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """torch's decompositions of ops that are not allowed in graphs, such as backward ops."""

    def name(op: Any) -> str:
        return f"{op.namespace}.{op._schema.name.split('::')[1]}.{op._overloadname or 'default'}"

    ops = [op for op in decomposition_table if isinstance(op, torch._ops.OpOverload)]
    found = {op: decomposition_table[op] for op in ops if name(op) not in ALLOWED_OPS}
    return {**found, torch.ops.aten.copy.default: _copy}


def _copy(to: torch.Tensor, source: torch.Tensor, _: bool = False) -> torch.Tensor:
    """Value of ``to`` after ``to.copy_(source)``."""
    return source.to(to.dtype).expand_as(to)


def _function_of(step: Any) -> Any:
    """The user's function, without torch's ``functools.partial`` wrappers."""
    while isinstance(step, functools.partial):
        step = step.keywords.get("combine_fn", step.func)
    return step
