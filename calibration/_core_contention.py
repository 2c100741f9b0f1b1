"""Find which ranks share CPU cores, and how much faster one of them computes while the others wait.

Some of the run's ops are timed twice: with all ranks at once, and in turns, one rank of each unit at a time. A unit is
a set of ranks with the same cores. Resources that units share (caches, memory bandwidth) are thus shared in both
timings.
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

from autosbp.calibration._arrival_delay import computation
from autosbp.calibration._budget import SHARING_S
from autosbp.calibration._collectives import all_gather_series, all_reduce_max, wait_for_device
from autosbp.calibration._request import CORE_CONTENTION, Request
from autosbp.calibration._sampling import sample
from autosbp.costmodel.op_benchmark import prepare_op
from autosbp.launch.json_gather import gather_json

NUM_OPS = 6
BOX_S = 0.1  # seconds for one direction of an op, either all at once or in one turn
_REPEATS = 7
_BATCH_S = 0.02
_SPREAD_BYTES = 32 * 2**20  # larger than the caches of a rank


def measure_core_contention(request: Request, device: torch.device, log: Any, made: set[str]) -> None:
    """Measure and log the speed-up, unless it is in ``made``; collective over all ranks.

    Logs None if every rank has hardware of its own.
    """
    if CORE_CONTENTION in made:
        return
    log.write({"begin": CORE_CONTENTION})
    units = _units(device)
    most = max(map(units.count, units))
    if most == 1:
        log.write({"sharing": None})
        return
    here = dist.get_rank()
    turn = units[:here].count(units[here])
    ratios: list[float] = []
    started_s = time.monotonic()
    for call in sample_op_calls(request, device):
        if ratios and all_reduce_max(time.monotonic() - started_s, device) > SHARING_S:
            break
        together_s = median(_seconds(call, [True] * len(units), device, log))
        alone = [_seconds(call if at == turn else _wait, _ranks_of_turn(units, at), device, log) for at in range(most)]
        ratios.append(together_s / median([seconds for found in alone for seconds in found]))
    speedup = min(max(median(ratios), 1.0), float(most))
    log.write({"sharing": {"speedup": speedup, "units": units}})


def _units(device: torch.device) -> list[int]:
    """The unit of each rank, numbered in order of appearance.

    Ranks of one machine with the same CPU affinity share a unit; every GPU is a unit of its own.
    """
    here: object = None
    if device.type == "cpu" and hasattr(os, "sched_getaffinity"):
        with suppress(OSError):  # containers and network namespaces of one kernel share its cores
            here = Path("/proc/sys/kernel/random/boot_id").read_text(), sorted(os.sched_getaffinity(0))
    names = [str(where or rank) for rank, where in enumerate(gather_json(here, device))]
    found = list(dict.fromkeys(names))
    return [found.index(name) for name in names]


def _ranks_of_turn(units: list[int], turn: int) -> list[bool]:
    return [units[:rank].count(unit) == turn for rank, unit in enumerate(units)]


def sample_op_calls(request: Request, device: torch.device) -> list[Callable[[], object]]:
    """A burst of matrix products, and both directions of ops spread evenly over the request's ops.

    An op that cannot run is skipped here; its own measurement reports the error later.
    """
    keys, count = request.op_keys, min(len(request.op_keys), NUM_OPS)
    calls = [computation(device)]
    for key in (keys[at * len(keys) // count] for at in range(count)):
        with suppress(Exception):
            calls += prepare_op(key, str(device), _SPREAD_BYTES)
    return calls


def _seconds(call: Callable[[], object], taking_part: list[bool], device: torch.device, log: Any) -> list[float]:
    """Times of every repeat of every rank that takes part, in seconds."""

    def together(value: float) -> float:
        log.beat()
        return all_reduce_max(value, device)

    def run() -> None:
        call()
        wait_for_device(device)

    times = sample(run, barrier_max=together, repeats=_REPEATS, box_s=BOX_S, batch_s=_BATCH_S)
    found = zip(all_gather_series(times, device), taking_part, strict=True)
    return [seconds for series, takes_part in found if takes_part for seconds in series]


def _wait() -> None:
    """Do nothing: what a rank runs while others take their turn; it meets them at the barriers before and after."""
