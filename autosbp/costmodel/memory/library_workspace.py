"""Device memory that libraries hold in torch's allocator from their first matmul on."""

from __future__ import annotations

from collections.abc import Mapping

LIBRARY_BYTES: Mapping[str, int] = {"cuda": 2 * 32 * 2**20 + 2**20}
"""cuBLAS holds 32 MiB per calling thread (forward and backward) on Hopper (8 on earlier GPUs), and cuBLASLt 1 MiB;
measured with torch 2.11 on an H200 (``python -m benchmarks.gpu``).
"""


def library_bytes(device: str) -> int:
    """Total bytes for a kind of device."""
    return LIBRARY_BYTES.get(device, 0)


def library_bytes_by_purpose(device: str) -> dict[str, int]:
    """Bytes by purpose for a kind of device; empty if there are none."""
    return {"libraries": LIBRARY_BYTES[device]} if device in LIBRARY_BYTES else {}
