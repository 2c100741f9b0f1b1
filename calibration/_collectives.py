"""The collectives that are measured, under one name each, and the few calls that keep ranks together.

``torch.distributed`` 2.13 renamed ``all_gather_into_tensor`` and ``reduce_scatter_tensor`` and deprecated the old
names; this is the one file that knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from calibration._request import ELEMENT_BYTES

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def message_bytes(num_bytes: int, num_ranks: int) -> int:
    """The least size of at least ``num_bytes`` that every rank of the group holds an equal whole part of."""
    unit = ELEMENT_BYTES * num_ranks
    return -(-num_bytes // unit) * unit


def prepare(
    kind: str, num_bytes: int, ranks: list[int], rows: int, group: Any, device: torch.device
) -> Callable[[], None]:
    """A call that runs one collective of ``num_bytes``, the full message as ``autosbp.costmodel.network`` counts it.

    ``p2p`` is what boxing sends: the transposition of a group of ``rows`` x columns, which leaves some ranks idle; a shift
    around the ring where the group is one row. ``broadcast`` starts at the group's first rank.
    """
    full = torch.zeros(num_bytes // ELEMENT_BYTES, device=device)
    part = torch.zeros(full.numel() // len(ranks), device=device)
    other = torch.empty_like(full)
    position = ranks.index(dist.get_rank())
    target, source = (ranks[place] for place in peers(position, rows, len(ranks)))

    def p2p() -> None:
        if target == ranks[position]:
            return
        receive = dist.P2POp(dist.irecv, other, source, group)
        send = dist.P2POp(dist.isend, full, target, group)
        for work in dist.batch_isend_irecv([receive, send]):
            work.wait()

    runs: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_gather": lambda: _all_gather(full, part, group=group),
        "reduce_scatter": lambda: _reduce_scatter(part, full, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, full, group=group),
        "broadcast": lambda: dist.broadcast(full, src=ranks[0], group=group),
        "p2p": p2p,
    }
    chosen = runs[kind]

    def run() -> None:
        chosen()

    return run


def peers(position: int, rows: int, num_ranks: int) -> tuple[int, int]:
    """To which place of its group a rank sends and from which it receives; its own, where it is idle."""
    if rows in (1, num_ranks):
        return (position + 1) % num_ranks, (position - 1) % num_ranks
    columns = num_ranks // rows
    row, column = divmod(position, columns)
    column_there, row_there = divmod(position, rows)
    return column * rows + row, row_there * columns + column_there


def buffer_bytes(num_bytes: int) -> int:
    """What ``prepare`` and a collective of this size occupy on a rank, at most: message, copy, part and staging."""
    return 4 * num_bytes


def free_bytes(device: torch.device) -> int:
    """Memory that one rank may use now: of its GPU, or its part of what this machine has available."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    return available // 2 // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def wait_for_device(device: torch.device) -> None:
    """Return when everything queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def largest(value: float, device: torch.device) -> float:
    """The largest of the ranks' values; also a barrier of all ranks."""
    tensor = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor.item())


def gather_series(series: list[float], device: torch.device) -> list[list[float]]:
    """Every rank's series, by rank; all have the same length."""
    mine = torch.tensor(series, dtype=torch.float64, device=device)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return [tensor.tolist() for tensor in everyone]
