"""Seconds of one kernel on a device that has efficiency curves (``cluster.hardware.EfficiencyCurves``).

All kernels except matmuls of known shape follow a roofline (Williams et al. 2009) with the rates that large kernels
reach:

    launch + max(FLOPs / (peak * matmul), bytes / (bandwidth * memory))

A matmul is cut into tiles. All compute units work on one tile each until the last wave of tiles is done, full or not
(NVIDIA, Matrix Multiplication Background User's Guide, sections 2.1, 3.1 and 3.2). A unit has room for one of the
largest tiles: it loads operands while it multiplies, but does nothing else while it writes a finished tile:

    launch + max(tiled FLOPs / (peak * matmul), bytes read / (bandwidth * memory)) + bytes written / (bandwidth * memory)

Tiled FLOPs are those of all tiles of all waves. Efficiency therefore depends on shape: thin matmuls, and those with
slightly more tiles than fill a wave, take longer per FLOP.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from autosbp.cluster.hardware import Device, EfficiencyCurves

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MatmulShape:
    """Result of a matmul: ``count`` matrices of ``rows`` x ``columns``, ``num_bytes`` in all."""

    count: int
    rows: int
    columns: int
    num_bytes: float


def peak_flops(device: Device, dtype: str) -> float:
    """FLOP/s as in ``Device.peak``."""
    return device.peak(dtype)


def roofline_s(device: Device, curves: EfficiencyCurves, dtype: str, flops: Floats, num_bytes: Floats) -> Floats:
    """Seconds of kernels of unknown shape, without launch."""
    arithmetic = flops / (peak_flops(device, dtype) * curves.matmul)
    return np.asarray(np.maximum(arithmetic, num_bytes / (device.memory_bandwidth_bytes_per_s * curves.memory)))


def kernel_s(
    device: Device,
    curves: EfficiencyCurves,
    dtype: str,
    flops: float,
    num_bytes: float,
    result: MatmulShape | None = None,
) -> float:
    """Seconds of one kernel that moves ``num_bytes``, with launch; ``result`` is the shape of a matmul's result."""
    rate, bandwidth = peak_flops(device, dtype) * curves.matmul, device.memory_bandwidth_bytes_per_s * curves.memory
    if result is None:
        return device.op_overhead_s + max(flops / rate, num_bytes / bandwidth)
    arithmetic = flops * tiling_overhead(curves, result) / rate
    return (
        device.op_overhead_s
        + max(arithmetic, (num_bytes - result.num_bytes) / bandwidth)
        + result.num_bytes / bandwidth
    )


def tiling_overhead(curves: EfficiencyCurves, result: MatmulShape) -> float:
    """Elements of all tiles of all waves per element of the result; tiles take the orientation that needs fewer."""
    sides = (curves.tile_rows, curves.tile_columns)
    tiles = min(
        result.count * ceil(result.rows / rows) * ceil(result.columns / columns)
        for rows, columns in (sides, sides[::-1])
    )
    waves = ceil(tiles / curves.units)
    return waves * curves.units * prod(sides) / (result.count * result.rows * result.columns)


def exposed_s(curves: EfficiencyCurves, transfer_s: float, overlapped_s: float) -> float:
    """Seconds that a transfer adds to overlapped kernels of ``beside_s`` seconds.

    The part that outlasts the kernels, plus their slowdown.
    """
    hidden = min(transfer_s, overlapped_s)
    return transfer_s - hidden + curves.contention * hidden
