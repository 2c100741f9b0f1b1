"""Shared by all tests: quiet, offline, one thread per rank; the longest files first."""

from __future__ import annotations

import gc
import os
from collections import Counter

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # while modules are imported, none of which becomes garbage


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, then those of many tests: one that is long and starts last would keep the other
    processes waiting for its end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    num_tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -num_tests[item.path]))


def pytest_collection_finish() -> None:
    """From here on garbage is searched for among what tests make, not among modules and tests."""
    gc.freeze()
    gc.enable()
