"""autosbp: find, explain and run the fastest way to train a PyTorch model on a GPU cluster.

Importing this package imports neither torch nor numpy; what it offers is imported where it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autosbp.discovery import discover as discover
    from autosbp.sbp.registry import register_op as register_op

__version__ = "0.1.0"
__all__ = ["__version__", "discover", "register_op"]

_HOMES = {"discover": "autosbp.discovery", "register_op": "autosbp.sbp.registry"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'autosbp' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
