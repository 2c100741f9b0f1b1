"""When compiled loops are worth their loading: importing numba takes as long as many a plan.

Without them numpy does the same additions about ten times as slowly. As they give the same bits, it makes no difference to a
plan when, or in which process, they were loaded.
"""

from __future__ import annotations

import sys
from typing import Any

WORTH_LOADING = 6e8
"""Additions by numpy that take about as long as loading: whoever has made as many may make as many again."""
_state: dict[str, Any] = {"kernels": None, "additions": 0.0}


def kernels(additions: float) -> Any | None:
    """``searchers.kernels``, for so many additions more; None while numpy has to do."""
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
