"""Freeze long-lived objects (gc.freeze) to avoid long garbage collection pauses."""

from __future__ import annotations

import gc


def freeze_all() -> None:
    """Exclude all current objects (modules, routes, schemas) from later garbage collections.

    Otherwise each full collection stops all threads for a tenth of a second. Call it after something large was loaded
    for good.
    """
    gc.collect()
    gc.freeze()
