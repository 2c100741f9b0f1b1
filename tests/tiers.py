"""The short form of the tests, which CI runs, and the long one: ``LONG=1``, ``make test LONG=1``.

The long form has all tests, and more cases of what takes long. Of a test that is marked ``some(n)`` the short form runs one
of n cases, the same ones every time; of one that counts, as many as ``form`` says; what is marked ``long`` it leaves out.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar
from zlib import crc32

import pytest

IS_LONG = os.environ.get("LONG", "0") not in ("", "0")
T = TypeVar("T")


def form(short: T, long: T) -> T:
    """What the form that runs takes."""
    return long if IS_LONG else short


def short_form(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Those that the short form runs. Cases of one test are taken as if at random, so that they differ in all that there is
    to choose, by their names, so that another case changes little."""
    found, cases = set[pytest.Item](), defaultdict[tuple[str, int], list[pytest.Item]](list)
    for item in items:
        some = item.get_closest_marker("some")
        if item.get_closest_marker("long") is not None:
            continue
        if some is None:
            found.add(item)
        else:
            (of,) = some.args
            cases[item.nodeid.partition("[")[0], of].append(item)
    for (_, of), each in cases.items():
        found.update(sorted(each, key=lambda item: crc32(item.nodeid.encode()))[: -(-len(each) // of)])
    return found
