"""Device memory that torch's tensors cannot have: the CUDA context, NCCL's buffers, and the allocator's fragmentation."""

from __future__ import annotations

from collections.abc import Mapping

from autosbp.cluster.hardware import Device, presets
from autosbp.utils.json_io import Fields


def memory_reserve(device: Device, num_ranks: int) -> Mapping[str, int]:
    """Bytes by purpose of one rank, from the data file's entry of the device, else of its kind; empty without one.

    Fragmentation is a fraction of what tensors take, charged for a full device. One rank alone loads no NCCL.
    """
    known = presets()["reserves"]
    if device.name not in known and device.kind not in known:
        return {}
    entry = Fields(known.get(device.name, known.get(device.kind)), f"reserves.{device.name}", _FIELDS)
    context = entry.integer("context_bytes", low=0)
    nccl = entry.integer("nccl_bytes", low=0) if num_ranks > 1 else 0
    part = entry.number("fragmentation", low=0.0, high=1.0)
    left = max(device.memory_bytes - context - nccl, 0)
    return {"context": context, "nccl": nccl, "fragmentation": round(left * part / (1 + part))}


def usable_memory_bytes(device: Device, num_ranks: int) -> int:
    """Memory of a device that torch's tensors can have."""
    return max(device.memory_bytes - sum(memory_reserve(device, num_ranks).values()), 1)


_FIELDS = ("context_bytes", "nccl_bytes", "fragmentation", "source")
