"""autosbp: find, explain and run the fastest way to train a PyTorch model on a GPU cluster.

Importing this package imports neither torch nor numpy; public names are imported on first use.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autosbp.discovery import discover as discover
    from autosbp.sbp.declared_rules import register_op as register_op
    from autosbp.training import parallelize as parallelize

__version__ = "0.1.0"
__all__ = ["__version__", "discover", "parallelize", "register_op"]

logging.getLogger(__name__).addHandler(logging.NullHandler())  # quiet unless the application configures logging
_EXPORT_MODULES = {
    "discover": "autosbp.discovery",
    "register_op": "autosbp.sbp.declared_rules",
    "parallelize": "autosbp.training",
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORT_MODULES:
        raise AttributeError(f"module 'autosbp' has no attribute {name!r}")
    return getattr(import_module(_EXPORT_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
