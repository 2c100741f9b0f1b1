"""Devices, links between them, and hosts: data classes and their readers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from autosbp.errors import InputError
from autosbp.graph.ir import FLOAT8
from autosbp.utils.json_io import Fields, read_trusted_yaml

MAX_DEVICES = 2**20
TF32 = "tensorfloat32"
PEAK_DTYPES = ("float64", "float32", "bfloat16", "float16", TF32, FLOAT8)
PRECISION_RATES: Mapping[str, str] = {"tf32": TF32, "fp8-mixed": FLOAT8}
"""Rate that a device must have for a training precision, beyond those of its dtypes."""
_PRESETS = Path(__file__).parents[1] / "data" / "clusters.yaml"


@dataclass(frozen=True, slots=True)
class EfficiencyCurves:
    """Fractions of a device's peaks that its kernels reach, the same for all kernels (see ``costmodel.efficiency``).

    ``matmul`` and ``memory`` are the fractions of peak FLOP/s and bandwidth of full tiles and large copies.
    ``contention`` is the fraction of a transfer's time by which it slows down overlapped kernels. A matmul is cut into
    tiles of ``tile_rows`` x ``tile_columns``; each of the device's ``units`` processes one at a time.
    """

    matmul: float
    memory: float
    contention: float
    units: int
    tile_rows: int
    tile_columns: int

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in EfficiencyCurves.__slots__}


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator or CPU rank.

    Rates are peaks; ``efficiency`` is the fraction that a large matmul reaches, unless there are ``curves``.
    """

    name: str
    kind: str  # "cpu" or "cuda"
    memory_bytes: int
    peak_flops: Mapping[str, float]  # FLOP/s by dtype name, such as {"float32": 19.5e12}
    memory_bandwidth_bytes_per_s: float
    efficiency: float = 0.5
    op_overhead_s: float = 5e-6
    curves: EfficiencyCurves | None = None

    def peak(self, dtype: str) -> float:
        """Peak FLOP/s of a dtype: its own, that of the other 16-bit type, float32's, or the lowest one known."""
        peaks = self.peak_flops
        found = peaks.get(dtype) or peaks.get({"bfloat16": "float16", "float16": "bfloat16"}.get(dtype, "float32"))
        return found or min(peaks.values())

    def in_precision(self, precision: str | None) -> Device:
        """The device with the rates of a training precision: in tf32, matmuls of float32 are in TensorFloat-32.

        Raises:
            InputError: the device lacks a rate that the precision needs (``PRECISION_RATES``).
        """
        needed = PRECISION_RATES.get(precision or "")
        if needed is None:
            return self
        rate = self.peak_flops.get(needed)
        if rate is None:
            limit = f"a device with peak_flops.{needed} is expected; {self.name} has none"
            raise InputError("precision", precision, limit)
        return replace(self, peak_flops={**self.peak_flops, "float32": rate}) if needed == TF32 else self

    @property
    def has_fast_bf16(self) -> bool:
        """Whether bfloat16 matmuls are faster than those of float32: tensor cores."""
        return self.peak_flops.get("bfloat16", 0.0) > self.peak("float32")

    def achieved_flops(self, dtype: str) -> float:
        """FLOP/s of a dtype in a large matmul."""
        return self.peak(dtype) * (self.curves.matmul if self.curves else self.efficiency)

    @property
    def copy_bytes_per_s(self) -> float:
        """Memory bandwidth that large copies reach."""
        return self.memory_bandwidth_bytes_per_s * (self.curves.memory if self.curves else 1.0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "memory_bytes": self.memory_bytes,
            "peak_flops": dict(self.peak_flops),
            "memory_bandwidth_bytes_per_s": self.memory_bandwidth_bytes_per_s,
            "efficiency": self.efficiency,
            "op_overhead_s": self.op_overhead_s,
            # Omitted if None: devices of older documents keep their hashes.
            **({"curves": self.curves.to_dict()} if self.curves else {}),
        }


@dataclass(frozen=True, slots=True)
class Level:
    """``count`` units joined by one kind of link. ``bandwidth_bytes_per_s`` is per unit and per direction."""

    name: str
    count: int
    latency_s: float
    bandwidth_bytes_per_s: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "count": self.count,
            "latency_s": self.latency_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
        }


@dataclass(frozen=True, slots=True)
class Host:
    """One device's share of its node's host, with all devices of the node busy.

    Args:
        link_bytes_per_s: link between device and host, in each direction.
        memory_bandwidth_bytes_per_s: bandwidth of host memory.
        memory_bytes: size of host memory.
    """

    link_bytes_per_s: float
    memory_bandwidth_bytes_per_s: float
    memory_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Host.__slots__}


@cache
def presets() -> dict[str, Any]:
    """The device and cluster data file, each entry with its cited source."""
    data: dict[str, Any] = read_trusted_yaml(_PRESETS)
    return data


def read_device(data: object, path: str = "device") -> Device:
    """Read a device by its name in the data file, or from a mapping; raises ``InputError``."""
    if isinstance(data, str):
        known = presets()["devices"]
        if data not in known:
            raise InputError(path, data, f"expected one of {', '.join(sorted(known))} or a mapping")
        data = {"name": data, **{key: value for key, value in known[data].items() if key != "source"}}
    fields = Fields(
        data,
        path,
        (
            "name",
            "kind",
            "memory_bytes",
            "peak_flops",
            "memory_bandwidth_bytes_per_s",
            "efficiency",
            "op_overhead_s",
            "curves",
        ),
    )
    peaks = Fields(fields.mapping("peak_flops"), f"{path}.peak_flops", PEAK_DTYPES)
    if not peaks.data:
        raise InputError(f"{path}.peak_flops", {}, "expected at least one dtype")
    return Device(
        fields.text("name"),
        fields.text("kind", choices=("cpu", "cuda")),
        fields.integer("memory_bytes", low=1),
        {key: peaks.rate(key) for key in sorted(peaks.data)},
        fields.rate("memory_bandwidth_bytes_per_s"),
        fields.number("efficiency", 0.5, low=1e-3, high=1.0),
        fields.number("op_overhead_s", 5e-6, low=0.0, high=1.0),
        _curves(fields.raw("curves"), f"{path}.curves") if fields.has("curves") else None,
    )


def read_host(data: object, path: str = "host") -> Host:
    """Read a host from its mapping; raises ``InputError``."""
    fields = Fields(data, path, tuple(Host.__slots__))
    return Host(
        fields.rate("link_bytes_per_s"),
        fields.rate("memory_bandwidth_bytes_per_s"),
        fields.integer("memory_bytes", low=1),
    )


def read_levels(entries: Sequence[object], path: str = "levels") -> tuple[Level, ...]:
    """Read one or two levels, outermost first; raises ``InputError``."""
    levels = []
    for index, entry in enumerate(entries):
        level = Fields(entry, f"{path}[{index}]", ("name", "count", "latency_s", "bandwidth_bytes_per_s"))
        name = level.text("name")
        if not re.fullmatch(r"[a-z][a-z_]{0,15}", name):
            raise InputError(level.at("name"), name, "expected 1 to 16 lower-case letters or underscores")
        count = level.integer("count", low=1, high=MAX_DEVICES)
        latency_s = level.number("latency_s", low=0.0, high=10.0)
        levels.append(Level(name, count, latency_s, level.rate("bandwidth_bytes_per_s")))
    if not 1 <= len(levels) <= 2:
        raise InputError(path, len(levels), "expected one level (devices) or two (nodes, devices)")
    if len({level.name for level in levels}) != len(levels):
        raise InputError(path, [level.name for level in levels], "level names must differ")
    return tuple(levels)


def _curves(data: object, path: str) -> EfficiencyCurves:
    fields = Fields(data, path, tuple(EfficiencyCurves.__slots__))
    return EfficiencyCurves(
        fields.number("matmul", low=1e-3, high=1.0),
        fields.number("memory", low=1e-3, high=1.0),
        fields.number("contention", low=0.0, high=1.0),
        fields.integer("units", low=1, high=2**20),
        fields.integer("tile_rows", low=1, high=2**20),
        fields.integer("tile_columns", low=1, high=2**20),
    )
