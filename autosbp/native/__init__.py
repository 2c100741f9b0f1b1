"""Optional C loops for computations that are slow in numpy; built if a compiler is available at installation.

Without them results are the same, bit for bit, but slower. Only ``autosbp/native/loops.c`` is compiled.
"""

from __future__ import annotations

from types import ModuleType

VERSION = 6
"""Version of the loops' interface; compiled loops of another version, from an earlier checkout, are ignored."""


def _load_loops() -> ModuleType | None:
    try:
        from autosbp.native import loops
    except ImportError:
        return None
    return loops if loops.VERSION == VERSION else None


LOOPS = _load_loops()
