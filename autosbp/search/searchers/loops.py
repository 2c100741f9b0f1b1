"""Which loops make min-plus sums: those in C, where they were built, else numba's once they are worth their loading: importing
numba takes as long as many a plan.

Without either numpy does the same additions about ten times as slowly. As all give the same bits, it makes no difference to a
plan which there were, when, or in which process.
"""

from __future__ import annotations

import sys
from typing import Any

from autosbp.native import LOOPS

WORTH_LOADING = 6e8
"""Additions by numpy that take about as long as loading: whoever has made as many may make as many again."""
_state: dict[str, Any] = {"kernels": LOOPS, "additions": 0.0}


def kernels(additions: float) -> Any | None:
    """``autosbp.native.loops`` or ``searchers.kernels``, for so many additions more; None while numpy has to do."""
    if _state["kernels"] is None:
        _state["additions"] += additions
        if _state["additions"] < WORTH_LOADING and not _is_imported():
            return None
        from autosbp.search.searchers import kernels as loaded

        _state["kernels"] = loaded
    return _state["kernels"]


def _is_imported() -> bool:
    """Whether somebody else paid for it."""
    return "numba" in sys.modules
