"""Loops in C for what numpy is slow at, where they were built: they are when the package is installed with a compiler at hand.

Without them results are the same, bit for bit, and take longer. Only ``autosbp/native/loops.c`` is compiled.
"""

from __future__ import annotations

from types import ModuleType

VERSION = 6
"""Of the loops that are called here: older ones, of an earlier checkout, are not."""


def _built() -> ModuleType | None:
    try:
        from autosbp.native import loops
    except ImportError:
        return None
    return loops if loops.VERSION == VERSION else None


LOOPS = _built()
