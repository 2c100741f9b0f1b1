"""Chooses the min-plus loops: those in C if they are built, else numba's once they are worth loading.

Importing numba takes longer than many searches do. NumPy does the same additions about ten times as slowly. All give
the same bits, so a plan does not depend on which loops ran, when, or in which process."""

from __future__ import annotations

import sys
from typing import Any

from autosbp.native import LOOPS

MIN_ADDITIONS_FOR_NUMBA = 6e8
"""Additions by NumPy that take about as long as loading numba: after so many, as many more are likely to follow."""
_state: dict[str, Any] = {"kernels": LOOPS, "additions": 0.0}


def load_kernels(additions: float) -> Any | None:
    """``autosbp.native.LOOPS`` or ``solvers.minplus_kernels``, for ``additions`` more; None while NumPy is good enough."""
    if _state["kernels"] is None:
        _state["additions"] += additions
        if _state["additions"] < MIN_ADDITIONS_FOR_NUMBA and not _is_imported():
            return None
        from autosbp.search.solvers import minplus_kernels as loaded

        _state["kernels"] = loaded
    return _state["kernels"]


def _is_imported() -> bool:
    """Whether other code has already imported numba."""
    return "numba" in sys.modules
