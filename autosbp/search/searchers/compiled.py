"""Functions compiled by numba, which run beside each other: they let go of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiled at its first call, and kept on disk."""
    return _compiled(function, fastmath=False)


def reassociated(function: Function) -> Function:
    """The same for loops over doubles whose order may be changed, so that they use vector units; nothing is NaN or inf."""
    return _compiled(function, fastmath=True)


def _compiled(function: Function, *, fastmath: bool) -> Function:
    try:
        return cast(Function, njit(cache=True, nogil=True, fastmath=fastmath)(function))
    except RuntimeError:  # no folder to keep it in that may be written, as in a read-only container
        return cast(Function, njit(nogil=True, fastmath=fastmath)(function))
