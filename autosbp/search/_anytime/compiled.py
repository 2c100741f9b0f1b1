"""Functions compiled by numba, which run beside each other: they let go of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiled at its first call, and kept on disk."""
    return cast(Function, njit(cache=True, nogil=True)(function))


def reassociated(function: Function) -> Function:
    """The same for loops over doubles whose order may be changed, so that they use vector units; nothing is NaN or inf."""
    return cast(Function, njit(cache=True, nogil=True, fastmath=True)(function))
