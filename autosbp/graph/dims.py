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
    """The symbols in ``dim``; a malformed expression is a ``GraphError``."""
    if isinstance(dim, int):
        return set()
    if len(dim) > MAX_DIM_TEXT:
        raise GraphError("dim", dim, f"at most {MAX_DIM_TEXT} characters are accepted")
    found = set()
    for term in dim.replace(" ", "").split("+"):
        for factor in term.split("*"):
            if not _TERM.fullmatch(factor):
                raise GraphError("dim", dim, "a sum of products of integers and lower-case symbols is expected")
            if not factor.isdigit():
                found.add(factor)
    return found


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The value of ``dim``; a symbol without a value is an ``InputError``."""
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
                raise InputError(f"symbols.{factor}", None, f"a value is needed for the dim {dim!r}")
        total += product
    if not 0 <= total <= MAX_DIM_SIZE:
        raise InputError("dim", f"{dim} = {total}", f"at most {MAX_DIM_SIZE} is accepted")
    return total
