"""What a device's libraries hold of its memory from their first product on, besides tensors, in torch's own allocator."""

from __future__ import annotations

from collections.abc import Mapping

LIBRARY_BYTES: Mapping[str, int] = {"cuda": 2 * 32 * 2**20 + 2**20}
"""cuBLAS has 32 MiB for each thread that calls it, of forward and of backward, on Hopper (8 on earlier GPUs), and cuBLASLt
1 MiB: seen with torch 2.11 on an H200 (``python -m benchmarks.gpu``)."""


def held_bytes(device: str) -> int:
    """All of it."""
    return LIBRARY_BYTES.get(device, 0)


def held(device: str) -> dict[str, int]:
    """By purpose, of a kind of device; empty where there is none."""
    return {"libraries": LIBRARY_BYTES[device]} if device in LIBRARY_BYTES else {}
