"""Seconds of one kernel on a device that has efficiency curves (``cluster.Curves``).

Anything but a product of known shape is a roofline (Williams et al. 2009) under what large kernels reach:

    launch + max(FLOPs / (peak * matmul), bytes / (bandwidth * memory))

A product is cut into tiles, and all units work on one tile each until the last wave of tiles is done, full or not (NVIDIA,
Matrix Multiplication Background User's Guide, sections 2.1, 3.1 and 3.2). A unit has room for one of the largest tiles, so
that it loads operands while it multiplies, but does nothing else while it writes a finished tile:

    launch + max(tiled FLOPs / (peak * matmul), bytes read / (bandwidth * memory)) + bytes written / (bandwidth * memory)

where tiled FLOPs are those of all tiles of all waves. Efficiency so depends on shape: thin products, and those with a few
tiles more than fill a wave, take longer for each FLOP.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from autosbp.cluster import Curves, Device

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Result:
    """What a product makes: ``count`` matrices of ``rows`` x ``columns``, ``num_bytes`` in all."""

    count: int
    rows: int
    columns: int
    num_bytes: float


def peak_flops(device: Device, dtype: str) -> float:
    """As ``Device.peak``."""
    return device.peak(dtype)


def roofline_s(device: Device, curves: Curves, dtype: str, flops: Floats, num_bytes: Floats) -> Floats:
    """Seconds of kernels of unknown shape, without their launch."""
    arithmetic = flops / (peak_flops(device, dtype) * curves.matmul)
    return np.asarray(np.maximum(arithmetic, num_bytes / (device.memory_bandwidth_bytes_per_s * curves.memory)))


def kernel_s(
    device: Device, curves: Curves, dtype: str, flops: float, num_bytes: float, result: Result | None = None
) -> float:
    """Seconds of one kernel that moves ``num_bytes``, its launch included; of a product if it has a ``result``."""
    rate, bandwidth = peak_flops(device, dtype) * curves.matmul, device.memory_bandwidth_bytes_per_s * curves.memory
    if result is None:
        return device.op_overhead_s + max(flops / rate, num_bytes / bandwidth)
    arithmetic = flops * tiled(curves, result) / rate
    return (
        device.op_overhead_s
        + max(arithmetic, (num_bytes - result.num_bytes) / bandwidth)
        + result.num_bytes / bandwidth
    )


def tiled(curves: Curves, result: Result) -> float:
    """Elements of all tiles of all waves, for each element of the result; tiles lie whichever way makes fewer."""
    sides = (curves.tile_rows, curves.tile_columns)
    tiles = min(
        result.count * ceil(result.rows / rows) * ceil(result.columns / columns)
        for rows, columns in (sides, sides[::-1])
    )
    waves = ceil(tiles / curves.units)
    return waves * curves.units * prod(sides) / (result.count * result.rows * result.columns)


def exposed_s(curves: Curves, transfer_s: float, beside_s: float) -> float:
    """What a transfer adds to kernels of ``beside_s`` seconds that run beside it: what outlasts them, and what it slows
    them down by."""
    hidden = min(transfer_s, beside_s)
    return transfer_s - hidden + curves.contention * hidden
