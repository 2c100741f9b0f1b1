"""Python's garbage collector, kept away from what stays."""

from __future__ import annotations

import gc


def keep_all() -> None:
    """Have everything that is there now left out of later collections: modules, routes, schemas. Else all threads wait for a
    tenth of a second whenever it is looked through. Called when something large has been loaded for good."""
    gc.collect()
    gc.freeze()
