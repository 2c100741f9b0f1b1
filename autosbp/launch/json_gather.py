"""JSON and bytes between ranks; torch.distributed's ``*_object`` collectives would send pickles."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from autosbp.utils.json_io import canonical, loads


def gather_json(document: object, device: torch.device) -> list[Any]:
    """Every rank's document, by rank, on every rank. Tuples become lists.

    Args:
        document: a JSON value; numbers are finite.
        device: of tensors that the process group can send.
    """
    mine = torch.frombuffer(bytearray(canonical(document)), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(mine)], device=device))
    lengths = [int(size) for size in sizes]
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: len(mine)] = mine.to(device)
    everyone = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(everyone, padded)
    return [
        loads(bytes(found[:length].cpu().numpy()), f"rank {rank}")
        for rank, (found, length) in enumerate(zip(everyone, lengths, strict=True))
    ]


def broadcast_bytes(content: bytes, device: torch.device) -> bytes:
    """Rank 0's bytes, on every rank; the other ranks' ``content`` is ignored."""
    size = torch.tensor([len(content)], device=device)
    dist.broadcast(size, src=0)
    sent = torch.zeros(int(size), dtype=torch.uint8, device=device)
    if dist.get_rank() == 0 and content:
        sent.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    if len(sent):
        dist.broadcast(sent, src=0)
    return bytes(sent.cpu().numpy())
