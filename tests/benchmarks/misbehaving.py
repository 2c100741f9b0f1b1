"""Readers that do everything that the harness is there to find."""

from __future__ import annotations

import os
import random
import time

from autosbp.errors import InputError
from benchmarks.fuzz._targets import Target


def _make(rng: random.Random) -> bytes:
    return rng.randbytes(4)


def accept(data: bytes, _: random.Random) -> None:
    assert len(data) == 4


def refuse(data: bytes, _: random.Random) -> None:
    raise InputError("field", data, "expected another")


def unclear(data: bytes, _: random.Random) -> None:
    raise InputError("", data, "x" * 9000)


def crash(data: bytes, _: random.Random) -> None:
    raise KeyError(data)


def die(data: bytes, _: random.Random) -> None:
    os._exit(7)


def compute(data: bytes, _: random.Random) -> None:
    while True:
        pass


def wait(data: bytes, _: random.Random) -> None:
    time.sleep(600)


def greedy(data: bytes, _: random.Random) -> None:
    bytearray(2**31)


TARGETS = {
    each.__name__: Target(_make, each, 0.2, 1) for each in (accept, refuse, unclear, crash, die, compute, wait, greedy)
}
