"""Which ranks compute on the same cores, and how much faster one of them is while the others wait.

Some of the run's ops are timed twice: all ranks at once, and in turns, one rank of each unit at a time, so that what units
share with each other (caches, memory) is shared in both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from autosbp.costmodel.op_bench import run_op
from autosbp.gathering import gather_json
from calibration._budget import SHARING_S
from calibration._collectives import gather_series, largest, wait_for_device
from calibration._request import SHARING, Request
from calibration._timing import sample
from calibration._waiting import computation

NUM_OPS = 6
BOX_S = 0.1  # of one direction of an op, all at once or in one turn
_REPEATS = 7
_BATCH_S = 0.02
_SPREAD_BYTES = 32 * 2**20  # more than the caches that a rank has


def measure_sharing(request: Request, device: torch.device, log: Any, made: set[str]) -> None:
    """Measure and log it, unless that is in ``made``; nothing where every rank has hardware of its own. The same on all
    ranks."""
    if SHARING in made:
        return
    log.write({"begin": SHARING})
    units = _units(device)
    most = max(map(units.count, units))
    if most == 1:
        log.write({"sharing": None})
        return
    here = dist.get_rank()
    turn = units[:here].count(units[here])
    ratios: list[float] = []
    started_s = time.monotonic()
    for call in typical_calls(request, device):
        if ratios and largest(time.monotonic() - started_s, device) > SHARING_S:
            break
        together_s = median(_seconds(call, [True] * len(units), device, log))
        alone = [_seconds(call if at == turn else _wait, _taking_part(units, at), device, log) for at in range(most)]
        ratios.append(together_s / median([seconds for found in alone for seconds in found]))
    speedup = min(max(median(ratios), 1.0), float(most))
    log.write({"sharing": {"speedup": speedup, "units": units}})


def _units(device: torch.device) -> list[int]:
    """The unit of each rank, numbered as they come: ranks of one machine that may run on the same cores share one. Every
    GPU is one of its own."""
    here: object = None
    if device.type == "cpu" and hasattr(os, "sched_getaffinity"):
        with suppress(OSError):  # containers and namespaces of one kernel share its cores
            here = Path("/proc/sys/kernel/random/boot_id").read_text(), sorted(os.sched_getaffinity(0))
    names = [str(where or rank) for rank, where in enumerate(gather_json(here, device))]
    found = list(dict.fromkeys(names))
    return [found.index(name) for name in names]


def _taking_part(units: list[int], turn: int) -> list[bool]:
    return [units[:rank].count(unit) == turn for rank, unit in enumerate(units)]


def typical_calls(request: Request, device: torch.device) -> list[Callable[[], object]]:
    """A burst of products, and both directions of ops that lie evenly among the request's; one that cannot be run is left
    out here, and named when its turn comes to be timed."""
    keys, count = request.op_keys, min(len(request.op_keys), NUM_OPS)
    calls = [computation(device)]
    for key in (keys[at * len(keys) // count] for at in range(count)):
        with suppress(Exception):
            calls += run_op(key, str(device), _SPREAD_BYTES)
    return calls


def _seconds(call: Callable[[], object], taking_part: list[bool], device: torch.device, log: Any) -> list[float]:
    """Of the ranks that take part, every repeat of each."""

    def together(value: float) -> float:
        log.beat()
        return largest(value, device)

    def run() -> None:
        call()
        wait_for_device(device)

    times = sample(run, together=together, repeats=_REPEATS, box_s=BOX_S, batch_s=_BATCH_S)
    found = zip(gather_series(times, device), taking_part, strict=True)
    return [seconds for series, takes_part in found if takes_part for seconds in series]


def _wait() -> None:
    """What a rank does in the turns of others: it meets them again before and after."""
