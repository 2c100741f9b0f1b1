"""Functions compiled by numba without the GIL, so that they run in parallel threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled_nogil(function: Function) -> Function:
    """Compile at the first call, and cache on disk."""
    return _compiled(function, fastmath=False)


def compiled_fastmath(function: Function) -> Function:
    """As ``compiled_nogil``, for loops over doubles that may be reordered to use vector units; no value may be NaN or inf."""
    return _compiled(function, fastmath=True)


def _compiled(function: Function, *, fastmath: bool) -> Function:
    try:
        return cast(Function, njit(cache=True, nogil=True, fastmath=fastmath)(function))
    except RuntimeError:  # no writable cache folder, as in a read-only container
        return cast(Function, njit(nogil=True, fastmath=fastmath)(function))
