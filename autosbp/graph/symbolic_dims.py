"""Symbolic dims: an int, or a sum of products of ints and symbols such as ``batch``, ``32*batch`` or ``batch+1``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from autosbp.errors import GraphError, InputError

Dim = int | str
MAX_DIM_SIZE = 2**40
MAX_DIM_TEXT = 256
_TERM = re.compile(r"[a-z][a-z0-9_]{0,31}|\d{1,13}")


def symbols_of(dim: Dim) -> set[str]:
    """The symbols in ``dim``; raise ``GraphError`` for a malformed expression."""
    if isinstance(dim, int):
        return set()
    if len(dim) > MAX_DIM_TEXT:
        raise GraphError("dim", dim, f"at most {MAX_DIM_TEXT} characters are accepted")
    found = set()
    for term in dim.replace(" ", "").split("+"):
        for factor in term.split("*"):
            if not _TERM.fullmatch(factor):
                raise GraphError("dim", dim, "expected a sum of products of integers and lower-case symbols")
            if not factor.isdigit():
                found.add(factor)
    return found


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The value of ``dim``; raise ``InputError`` for a symbol without a value."""
    if isinstance(dim, int):
        return dim
    total = 0
    for term in dim.replace(" ", "").split("+"):
        product = 1
        for factor in term.split("*"):
            if factor.isdigit():
                product *= int(factor)
            elif factor in values:
                product *= values[factor]
            else:
                raise InputError(f"symbols.{factor}", None, f"dim {dim!r} requires a value")
        total += product
    if not 0 <= total <= MAX_DIM_SIZE:
        raise InputError("dim", f"{dim} = {total}", f"expected at most {MAX_DIM_SIZE}")
    return total
