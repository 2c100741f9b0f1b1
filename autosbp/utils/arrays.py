"""Distinct members of an array of small numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def unique_ints(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Distinct members of ``values``, shape (n), all at least 0, in increasing order.

    It takes memory for as many counts as the largest member. ``np.unique`` does the same but loads ``numpy.ma`` first,
    which takes longer than all such calls for the plan of a small model.
    """
    return np.flatnonzero(np.bincount(values))


def unique_inverse(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct members of ``values``, as ``unique_ints`` returns them, and the index of each value among them."""
    counts = np.bincount(values)
    members = np.flatnonzero(counts)
    places = np.empty(len(counts), dtype=np.int64)
    places[members] = np.arange(len(members))
    return members, places[values]
