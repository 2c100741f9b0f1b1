"""Shared by all tests: quiet, offline, one thread per rank; the longest files first; one form (``tests.tiers``)."""

from __future__ import annotations

import gc
import os
from collections import Counter

import pytest

from tests.tiers import IS_LONG, short_form

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # while modules are imported, none of which becomes garbage


@pytest.hookimpl(trylast=True)  # of what else is asked for
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests come first, then those of many tests: one that is long and starts last would keep the other
    processes waiting for its end."""
    if not IS_LONG:
        wanted = short_form(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = [item for item in items if item in wanted]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    num_tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -num_tests[item.path]))


def pytest_collection_finish() -> None:
    """From here on garbage is searched for among what tests make, not among modules and tests."""
    gc.freeze()
    gc.enable()
