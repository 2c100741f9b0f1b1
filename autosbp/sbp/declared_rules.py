"""Sharding rules that users declare for their own custom ops, in factor notation (``autosbp.sbp.factor_notation``).

    autosbp.register_op("mylib::fancy", "b s d, d -> b s d")

says that ``b``, ``s`` and ``d`` may be split; see ``register_op``. Model capture, in the same process, reads the
declarations and stores them in the graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from autosbp.errors import InputError

_OP = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?")
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.\.\.)?")
_TERM = re.compile(r"\+?(\[[^\[\]+]*\]|[^\[\]+]*)")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Declaration:
    """A user's declaration of one op; ``notation`` is empty if the layouts are to be discovered."""

    notation: str
    linear: str
    whole: str
    flops: float


_declared: dict[str, Declaration] = {}


def register_op(
    op: str, notation: str | None = None, *, linear: str = "", whole: str = "", flops: float = 0.0
) -> Callable[[T], T]:
    """Declare the layouts of a custom op; without ``notation``, model capture discovers them by running the op.

    Args:
        op: ``library::name``, or ``library::name.overload``.
        notation: one term for each tensor argument, in order, and after ``->`` for each output. A term names the dims;
            a tensor is not split along a name that its term lacks, and a name that the outputs lack is summed over.
            ``b...`` is any number of leading dims, ``[k]`` an argument that may be absent, ``+`` an operand that is
            added.
        linear: sets of arguments in which the op is linear, such as ``"0; 1"`` for a product and ``"0 1"`` for a sum.
        whole: names that may not be split.
        flops: FLOPs of the forward pass per point of the product of all names.

    Returns:
        A decorator that returns its argument, so that the declaration can precede the op's definition.

    Raises:
        InputError: names the malformed term. Capture rejects a declaration that the op violates.
    """
    match = _OP.fullmatch(op) if isinstance(op, str) else None
    if match is None or match.group(1) == "aten":
        raise InputError("op", op, "expected library::name of a custom op")
    if notation is not None:
        _check(notation, linear, whole)
    elif linear or whole or flops:
        raise InputError("notation", notation, "linear, whole and flops require a notation")
    name = f"{match.group(1)}.{match.group(2)}.{match.group(3) or 'default'}"
    _declared[name] = Declaration(notation or "", linear, whole, flops)

    def same(definition: T) -> T:
        return definition

    return same


def declaration(op: str) -> Declaration | None:
    """The declaration of ``NAMESPACE.NAME.OVERLOAD``, or None without one that has a notation."""
    found = _declared.get(op)
    return found if found is not None and found.notation else None


def _check(notation: str, linear: str, whole: str) -> None:
    left, arrow, right = notation.partition("->")
    if not arrow or "->" in right:
        raise InputError("notation", notation, "expected terms -> terms")
    terms = [term.strip() for term in left.split(",")]
    known = {name for term in terms for name in _names(term, inputs=True)}
    for term in right.split(","):
        for name in _names(term.strip(), inputs=False):
            if name not in known:
                raise InputError(
                    "notation", term.strip(), f"{name} is in no input term; the inputs have {_list(known)}"
                )
    for name in whole.split():
        if name not in {known_name.removesuffix("...") for known_name in known}:
            raise InputError("whole", name, f"expected one of {_list(known)}")
    for part in linear.split(";"):
        for at in part.split():
            if not at.isdecimal() or int(at) >= len(terms):
                raise InputError("linear", at, f"expected the index of an input, 0 to {len(terms) - 1}")


def _names(term: str, *, inputs: bool) -> list[str]:
    if not _TERM.fullmatch(term) or (not inputs and term.strip("+[]") != term):
        raise InputError("notation", term, "expected names of dims" + (", or [names], or +names" if inputs else ""))
    names = term.strip("+[]").split()
    for name in names:
        if not _NAME.fullmatch(name):
            raise InputError(
                "notation", term, (f"invalid dim name {name}: expected lower-case letters and digits, or b...")
            )
    if len(set(names)) < len(names):
        raise InputError("notation", term, "expected distinct names within a term")
    if sum(name.endswith("...") for name in names) > 1:
        raise InputError("notation", term, "expected at most one name with ... per term")
    return names


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
