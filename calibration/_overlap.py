"""How much compute and an all-reduce over all ranks slow each other down while both run.

An all-reduce that outlasts a burst of computation is begun before it. What the burst takes longer than alone is the
slow-down of compute; what the all-reduce takes longer than alone, it lost while the burst ran: of these seconds it used
1 / (1 + network).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from autosbp.costmodel.overlap import Overlap
from calibration._budget import OVERLAP_S
from calibration._collectives import gather_series, largest, wait_for_device
from calibration._request import OVERLAP
from calibration._waiting import computation

NUM_ROUNDS, LEAST_ROUNDS = 9, 3
OUTLASTS = 3.0
"""The all-reduce alone takes at least so many times as long as the burst."""
_SMALLEST, _LARGEST = 2**16, 2**27


def measure_overlap(device: torch.device, log: Any, made: set[str]) -> None:
    """Measure and log the slow-downs, unless that is in ``made``; the same on all ranks."""
    if OVERLAP in made:
        return
    log.write({"begin": OVERLAP})
    burst = computation(device)
    alone_s = _slowest_s(burst, device)
    message = _message(OUTLASTS * alone_s, device)
    log.beat()
    rows: list[tuple[float, float, float, float]] = []
    while len(rows) < LEAST_ROUNDS or (len(rows) < NUM_ROUNDS and sum(map(_spent_s, rows)) < OVERLAP_S):
        rows.append(_round(burst, message, device))
    compute = max(median(row[0] / row[1] for row in rows) - 1.0, 0.0)
    lost = median((row[2] - row[3]) / row[0] for row in rows)
    network = min(max(lost, 0.0) / max(1.0 - lost, 1e-9), Overlap.HIGH)
    log.write({"overlap": {"compute": min(compute, Overlap.HIGH), "network": network}})


def _message(least_s: float, device: torch.device) -> torch.Tensor:
    """A message whose all-reduce takes at least so long, or the largest."""
    size = _SMALLEST
    while True:
        message = torch.zeros(size // 4, device=device)
        if size >= _LARGEST or _slowest_s(partial(dist.all_reduce, message), device) >= least_s:
            return message
        size *= 2


def _round(
    burst: Callable[[], object], message: torch.Tensor, device: torch.device
) -> tuple[float, float, float, float]:
    """Seconds, of the slowest rank: the burst beside the all-reduce and alone, the all-reduce beside it and alone."""

    def both() -> tuple[float, float]:
        started = time.perf_counter()
        work: Any = dist.all_reduce(message, async_op=True)
        computed_s = _timed(burst, device)
        work.wait()
        wait_for_device(device)
        return computed_s, time.perf_counter() - started

    largest(0.0, device)
    computed_s, together_s = both()
    burst_s = _slowest_s(burst, device)
    alone_s = _slowest_s(partial(dist.all_reduce, message), device)
    computed_s, together_s = (largest(each, device) for each in (computed_s, together_s))
    return computed_s, burst_s, together_s, alone_s


def _spent_s(row: tuple[float, float, float, float]) -> float:
    """What a round took: the burst within the time of both."""
    _, burst_s, together_s, alone_s = row
    return burst_s + together_s + alone_s


def _timed(call: Callable[[], object], device: torch.device) -> float:
    """On a GPU the burst's own end, not that of what else the device does."""
    started = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return time.perf_counter() - started


def _slowest_s(call: Callable[[], object], device: torch.device) -> float:
    largest(0.0, device)
    started = time.perf_counter()
    call()
    wait_for_device(device)
    return max(seconds for (seconds,) in gather_series([time.perf_counter() - started], device))
