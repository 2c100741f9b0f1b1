"""Branches on tensor values while a model is traced: what is constant is evaluated, checks that only raise are left out.

Traced tensors have no values. While ``ValueGuards`` is active, tensors that depend on sizes only, such as masks, carry
their values along, so that ``if mask.any()`` takes the branch of the model. ``if`` and ``assert`` that do nothing but
raise, such as checks of labels, are taken to pass.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

MAX_ELEMENTS = 2**24
_READS = frozenset(
    getattr(torch.Tensor, name) for name in ("__bool__", "__int__", "__float__", "__index__", "item", "tolist")
)
_RANDOM = re.compile(r"rand|normal|bernoulli|dropout|multinomial|uniform|exponential|empty|poisson|cauchy|geometric")
_OF_SHAPE = frozenset(("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"))
_IN_PLACE = re.compile(r"[a-z0-9]_$|^__setitem__$|^__i[a-z]+__$")
_TORCH = str(Path(torch.__file__).parent)


class ValueGuards(TorchFunctionMode):
    """Values of constant tensors, and the checks that were left out: file and line of each."""

    def __init__(self) -> None:
        super().__init__()
        self.values = WeakTensorKeyDictionary()
        self.left_out: dict[str, None] = {}

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _READS:
            if args[0] in self.values:
                return self._evaluate(func, args, {})
            branch = self.passing_branch() if func is torch.Tensor.__bool__ else None
            if branch is not None:
                return branch
        result = func(*args, **(kwargs or {}))
        if func not in _READS:
            self._follow(func, args, kwargs or {}, result)
        return result

    def passing_branch(self) -> bool | None:
        """The value with which the calling line's ``if`` or ``assert`` does not raise; None for other lines."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith((_TORCH, __file__)):
            frame = frame.f_back
        if frame is None:
            return None
        position = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        branch = _branch_without_raise(frame.f_code, position)
        if branch is not None:
            self.left_out[f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"] = None
        return branch

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Evaluate a call whose tensors are all known."""
        name = getattr(func, "__name__", "")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        known = all(tensor in self.values for tensor in tensors)
        if _IN_PLACE.search(name) and not known and any(tensor in self.values for tensor in tensors):
            self.values.clear()  # the target may share memory with other tensors
            return
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if not outputs or not all(map(_is_small, outputs)) or _RANDOM.search(name):
            return
        if name in _OF_SHAPE and tensors and tensors[0] not in self.values:
            with _real_tensors():
                shape = [0] if name.startswith("new_") else [_hint(size) for size in tensors[0].shape]
                args = (torch.empty(shape, dtype=tensors[0].dtype), *args[1:])
        elif not known:
            return
        try:
            found = self._evaluate(func, args, kwargs)
        except Exception:  # an op that takes sizes without a value, or a device that is not here
            return
        values = [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        for out, value in zip(outputs, values, strict=False):
            self.values[out] = value

    def _evaluate(self, func: Any, args: Any, kwargs: Any) -> Any:
        def value(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return self.values.get(leaf, leaf)  # type: ignore[no-untyped-call]
            if isinstance(leaf, torch.device):
                return torch.device("cpu")
            return _hint(leaf)

        with _real_tensors():
            return func(*tree_map(value, args), **tree_map(value, kwargs))


def _hint(value: Any) -> Any:
    """A symbolic size as that of the example; raises ``TypeError`` for one that depends on values."""
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value


def _is_small(tensor: torch.Tensor) -> bool:
    sizes = [size.node.hint if isinstance(size, torch.SymInt) else size for size in tensor.shape]
    return None not in sizes and prod(sizes) <= MAX_ELEMENTS


@contextmanager
def _real_tensors() -> Iterator[None]:
    """Outside of tracing, within it."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


@contextmanager
def value_guards() -> Iterator[ValueGuards]:
    """Trace with ``ValueGuards``; also of numbers that ``item()`` has read."""
    guards = ValueGuards()
    original = torch.SymBool.__bool__

    def decide(self: torch.SymBool) -> bool:
        try:
            return bool(original(self))  # type: ignore[no-untyped-call]
        except GuardOnDataDependentSymNode:
            branch = guards.passing_branch()
            if branch is None:
                raise
            return branch

    torch.SymBool.__bool__ = decide  # type: ignore[method-assign]
    try:
        with guards:
            yield guards
    finally:
        torch.SymBool.__bool__ = original  # type: ignore[method-assign]


def _branch_without_raise(code: CodeType, position: tuple[int | None, ...]) -> bool | None:
    line, end_line, column, end_column = position
    for node, parents in _expressions(code.co_filename):
        if (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == (line, end_line, column, end_column):
            if isinstance(node, ast.Assert):  # the jump of an assertion has the position of the whole
                simple = not any(isinstance(each, ast.Not) for each in ast.walk(node))
                return True if simple else None
            return _passing_value(node, parents)
    return None


def _passing_value(node: ast.expr, parents: tuple[ast.AST, ...]) -> bool | None:
    """The value of an expression with which the statement around it does not raise; None if it does other things."""
    inverted = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)  # the position may be that of the whole
    for parent in reversed(parents):
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            inverted = not inverted
        elif isinstance(parent, ast.Assert):
            return not inverted
        elif isinstance(parent, ast.If):
            if _only_raises(parent.body):
                return inverted
            return not inverted if _only_raises(parent.orelse) else None
        elif not isinstance(parent, ast.BoolOp):
            return None
    return None


def _only_raises(body: list[ast.stmt]) -> bool:
    return (
        len(body) > 0
        and all(isinstance(each, (ast.Raise, ast.Expr)) for each in body)
        and isinstance(body[-1], ast.Raise)
    )


@lru_cache(maxsize=64)
def _expressions(file: str) -> tuple[tuple[ast.expr | ast.Assert, tuple[ast.AST, ...]], ...]:
    """Expressions in tests of ``if`` and ``assert`` in a file, each with the nodes around it from the statement on."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    found: list[tuple[ast.expr | ast.Assert, tuple[ast.AST, ...]]] = []

    def collect(node: ast.expr, parents: tuple[ast.AST, ...]) -> None:
        found.append((node, parents))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                collect(child, (*parents, node))

    for statement in ast.walk(tree):
        if isinstance(statement, (ast.If, ast.Assert)):
            found += [(statement, ())] if isinstance(statement, ast.Assert) else []
            collect(statement.test, (statement,))
    return tuple(found)
