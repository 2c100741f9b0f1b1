"""Devices, the links that join them, and hosts: data, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from autosbp.errors import InputError
from autosbp.jsonio import Fields, read_shipped

MAX_DEVICES = 2**20
_PRESETS = Path(__file__).parent / "data" / "clusters.yaml"


@dataclass(frozen=True, slots=True)
class Curves:
    """What a device's kernels reach of its peaks, the same for all kernels (see ``costmodel.efficiency``).

    ``matmul`` and ``memory`` are the parts of peak arithmetic and bandwidth that full tiles and large copies reach;
    ``contention`` is the part of a transfer's time by which it slows down kernels that run beside it. A product is cut
    into tiles of ``tile_rows`` x ``tile_columns``, of which the device's ``units`` do one each at a time.
    """

    matmul: float
    memory: float
    contention: float
    units: int
    tile_rows: int
    tile_columns: int

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Curves.__slots__}


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator or CPU rank. Rates are peaks; ``efficiency`` is the part that a large matmul reaches, unless there
    are ``curves``."""

    name: str
    kind: str  # "cpu" or "cuda"
    memory_bytes: int
    peak_flops: Mapping[str, float]  # FLOP/s by dtype name, such as {"float32": 19.5e12}
    memory_bandwidth_bytes_per_s: float
    efficiency: float = 0.5
    op_overhead_s: float = 5e-6
    curves: Curves | None = None

    def peak(self, dtype: str) -> float:
        """FLOP/s of a dtype: its own, that of the other 16-bit type, float32's, or the lowest there is."""
        peaks = self.peak_flops
        found = peaks.get(dtype) or peaks.get({"bfloat16": "float16", "float16": "bfloat16"}.get(dtype, "float32"))
        return found or min(peaks.values())

    def reached(self, dtype: str) -> float:
        """FLOP/s of a dtype in a large matrix product."""
        return self.peak(dtype) * (self.curves.matmul if self.curves else self.efficiency)

    @property
    def copied_bytes_per_s(self) -> float:
        """The memory's bandwidth that large copies reach."""
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
            # Absent where there are none: devices of older documents keep their hashes.
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
    """One device's share of its node's processors, with all devices of the node busy: its link, in each direction, the
    bandwidth of the memory, and its size."""

    link_bytes_per_s: float
    memory_bandwidth_bytes_per_s: float
    memory_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Host.__slots__}


@cache
def presets() -> dict[str, Any]:
    """The device and cluster data file, each entry with its cited source."""
    data: dict[str, Any] = read_shipped(_PRESETS)
    return data


def read_device(data: object, path: str = "device") -> Device:
    """A device by its name in the data file, or as a mapping; raises ``InputError``."""
    if isinstance(data, str):
        known = presets()["devices"]
        if data not in known:
            raise InputError(path, data, f"one of {', '.join(sorted(known))} or a mapping is expected")
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
    peaks = Fields(fields.mapping("peak_flops"), f"{path}.peak_flops", ("float64", "float32", "bfloat16", "float16"))
    if not peaks.data:
        raise InputError(f"{path}.peak_flops", {}, "at least one dtype is expected")
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
    """A host from its mapping; raises ``InputError``."""
    fields = Fields(data, path, tuple(Host.__slots__))
    return Host(
        fields.rate("link_bytes_per_s"),
        fields.rate("memory_bandwidth_bytes_per_s"),
        fields.integer("memory_bytes", low=1),
    )


def read_levels(entries: Sequence[object], path: str = "levels") -> tuple[Level, ...]:
    """One or two levels, outermost first; raises ``InputError``."""
    levels = []
    for index, entry in enumerate(entries):
        level = Fields(entry, f"{path}[{index}]", ("name", "count", "latency_s", "bandwidth_bytes_per_s"))
        name = level.text("name")
        if not re.fullmatch(r"[a-z][a-z_]{0,15}", name):
            raise InputError(level.at("name"), name, "1 to 16 lower-case letters or underscores are expected")
        count = level.integer("count", low=1, high=MAX_DEVICES)
        latency_s = level.number("latency_s", low=0.0, high=10.0)
        levels.append(Level(name, count, latency_s, level.rate("bandwidth_bytes_per_s")))
    if not 1 <= len(levels) <= 2:
        raise InputError(path, len(levels), "one level (devices) or two (nodes, devices) are expected")
    if len({level.name for level in levels}) != len(levels):
        raise InputError(path, [level.name for level in levels], "level names must differ")
    return tuple(levels)


def _curves(data: object, path: str) -> Curves:
    fields = Fields(data, path, tuple(Curves.__slots__))
    return Curves(
        fields.number("matmul", low=1e-3, high=1.0),
        fields.number("memory", low=1e-3, high=1.0),
        fields.number("contention", low=0.0, high=1.0),
        fields.integer("units", low=1, high=2**20),
        fields.integer("tile_rows", low=1, high=2**20),
        fields.integer("tile_columns", low=1, high=2**20),
    )
