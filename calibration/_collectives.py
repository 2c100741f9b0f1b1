"""The measured collectives, under one name per kind, and a few helper collectives that synchronize the ranks.

``torch.distributed`` 2.13 renamed ``all_gather_into_tensor`` and ``reduce_scatter_tensor`` and deprecated the old
names; only this file handles both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.calibration._request import ELEMENT_BYTES

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def message_bytes(num_bytes: int, num_ranks: int) -> int:
    """Smallest size >= ``num_bytes`` that divides into equal parts of whole float32 elements, one per rank."""
    unit = ELEMENT_BYTES * num_ranks
    return -(-num_bytes // unit) * unit


def prepare(
    kind: str, num_bytes: int, ranks: list[int], rows: int, group: Any, device: torch.device
) -> Callable[[], None]:
    """Return a call that runs one collective of ``num_bytes``, the full message size of the cost model.

    ``autosbp.costmodel.network`` defines that size. ``p2p`` is the pattern that boxing sends: the transposition of a
    group of ``rows`` x columns, which leaves some ranks idle, or a ring shift if the group is a single row.
    ``broadcast`` starts at the group's first rank.
    """
    full = torch.zeros(num_bytes // ELEMENT_BYTES, device=device)
    part = torch.zeros(full.numel() // len(ranks), device=device)
    other = torch.empty_like(full)
    position = ranks.index(dist.get_rank())
    target, source = (ranks[place] for place in p2p_peers(position, rows, len(ranks)))

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


def p2p_peers(position: int, rows: int, num_ranks: int) -> tuple[int, int]:
    """Positions in the group that a rank sends to and receives from; its own position if it is idle."""
    if rows in (1, num_ranks):
        return (position + 1) % num_ranks, (position - 1) % num_ranks
    columns = num_ranks // rows
    row, column = divmod(position, columns)
    column_there, row_there = divmod(position, rows)
    return column * rows + row, row_there * columns + column_there


def buffer_bytes(num_bytes: int) -> int:
    """Upper bound on a rank's memory for ``prepare`` and a collective of this size: message, copy, part and staging."""
    return 4 * num_bytes


def free_bytes(device: torch.device) -> int:
    """Memory in bytes that a rank may use: free memory of its GPU, or its share of half of the host's available memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    return available // 2 // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def wait_for_device(device: torch.device) -> None:
    """Wait until all work queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def all_reduce_max(value: float, device: torch.device) -> float:
    """Maximum of the ranks' values; also acts as a barrier."""
    tensor = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor.item())


def all_gather_series(series: list[float], device: torch.device) -> list[list[float]]:
    """Every rank's series, indexed by rank; all have the same length."""
    mine = torch.tensor(series, dtype=torch.float64, device=device)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return [tensor.tolist() for tensor in everyone]
