"""Distinct members of an array of small numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The members of ``values``, shape (n), none of them below 0, each once and the least first; counted in as many places as
    the largest has. ``np.unique`` does the same once it has loaded ``numpy.ma``, which takes longer than all that a plan of a
    small model asks of it."""
    return np.flatnonzero(np.bincount(values))


def distinct_places(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The members of ``values``, as ``distinct`` gives them; and for each of ``values`` which of these it is."""
    counts = np.bincount(values)
    members = np.flatnonzero(counts)
    places = np.empty(len(counts), dtype=np.int64)
    places[members] = np.arange(len(members))
    return members, places[values]
