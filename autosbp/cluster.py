"""Clusters: devices, levels of the network, and the file format and presets that describe them.

A cluster is a product of levels, outermost (slowest) first: ``nodes x devices of a node``. A level's bandwidth is what
one unit of that level (one node, one device) can send, shared by all groups of ranks that use it at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from autosbp.errors import InputError
from autosbp.jsonio import Fields, check_integer, digest, read_file
from autosbp.sbp.mesh import Axis, Mesh

SCHEMA = "autosbp.cluster/1"
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


@dataclass(frozen=True, slots=True)
class Cluster:
    """Identical devices on a product of levels, outermost first. Two levels at most: nodes and devices of a node. ``host``
    is what optimizer state can be offloaded to, where that is known."""

    name: str
    levels: tuple[Level, ...]
    device: Device
    source: str = ""
    host: Host | None = None

    @property
    def num_devices(self) -> int:
        total = 1
        for level in self.levels:
            total *= level.count
        return total

    @property
    def devices_per_node(self) -> int:
        return self.levels[-1].count if len(self.levels) > 1 else 1

    @property
    def levels_key(self) -> tuple[tuple[str, int], ...]:
        """Names and counts of the levels: what a calibration must agree on."""
        return tuple((level.name, level.count) for level in self.levels)

    @property
    def cluster_hash(self) -> str:
        return digest(self.to_dict())

    def mesh(self) -> Mesh:
        """The finest mesh: each level's count factored into primes, outermost level first (DESIGN section 2)."""
        axes = []
        for index, level in enumerate(self.levels):
            for position, prime in enumerate(prime_factors(level.count)):
                axes.append(Axis(f"{level.name}{position}", prime, index))
        return Mesh(tuple(axes), tuple(level.count for level in self.levels))

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "name": self.name,
            "device": self.device.to_dict(),
            "levels": [level.to_dict() for level in self.levels],
            "source": self.source,
            **({"host": self.host.to_dict()} if self.host else {}),
        }

    @staticmethod
    def from_dict(data: object) -> Cluster:
        """Read the file format; raises ``InputError`` that names the field, the value and the limit."""
        fields = Fields(data, "", ("schema", "name", "device", "levels", "source", "host"))
        fields.schema(SCHEMA)
        levels = []
        for index, entry in enumerate(fields.sequence("levels")):
            level = Fields(entry, f"levels[{index}]", ("name", "count", "latency_s", "bandwidth_bytes_per_s"))
            name = level.text("name")
            if not re.fullmatch(r"[a-z][a-z_]{0,15}", name):
                raise InputError(level.at("name"), name, "1 to 16 lower-case letters or underscores are expected")
            levels.append(
                Level(
                    name,
                    level.integer("count", low=1, high=MAX_DEVICES),
                    level.number("latency_s", low=0.0, high=10.0),
                    level.positive("bandwidth_bytes_per_s"),
                )
            )
        if not 1 <= len(levels) <= 2:
            raise InputError("levels", len(levels), "one level (devices) or two (nodes, devices) are expected")
        if len({level.name for level in levels}) != len(levels):
            raise InputError("levels", [level.name for level in levels], "level names must differ")
        source = fields.raw("source", "")
        if not isinstance(source, str):
            raise InputError("source", source, "a string is expected")
        host = _host(fields.raw("host")) if fields.has("host") else None
        cluster = Cluster(fields.text("name"), tuple(levels), _device(fields.raw("device")), source, host)
        if cluster.num_devices > MAX_DEVICES:
            raise InputError("levels", cluster.num_devices, f"at most {MAX_DEVICES} devices are expected")
        return cluster


def _device(data: object) -> Device:
    if isinstance(data, str):
        known = presets()["devices"]
        if data not in known:
            raise InputError("device", data, f"one of {', '.join(sorted(known))} or a mapping is expected")
        data = {"name": data, **{key: value for key, value in known[data].items() if key != "source"}}
    fields = Fields(
        data,
        "device",
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
    peaks = Fields(fields.mapping("peak_flops"), "device.peak_flops", ("float64", "float32", "bfloat16", "float16"))
    if not peaks.data:
        raise InputError("device.peak_flops", {}, "at least one dtype is expected")
    return Device(
        fields.text("name"),
        fields.text("kind", choices=("cpu", "cuda")),
        fields.integer("memory_bytes", low=1),
        {key: peaks.positive(key) for key in sorted(peaks.data)},
        fields.positive("memory_bandwidth_bytes_per_s"),
        fields.number("efficiency", 0.5, low=1e-3, high=1.0),
        fields.number("op_overhead_s", 5e-6, low=0.0, high=1.0),
        _curves(fields.raw("curves")) if fields.has("curves") else None,
    )


def _host(data: object) -> Host:
    fields = Fields(data, "host", tuple(Host.__slots__))
    return Host(
        fields.positive("link_bytes_per_s"),
        fields.positive("memory_bandwidth_bytes_per_s"),
        fields.integer("memory_bytes", low=1),
    )


def _curves(data: object) -> Curves:
    fields = Fields(data, "device.curves", tuple(Curves.__slots__))
    return Curves(
        fields.number("matmul", low=1e-3, high=1.0),
        fields.number("memory", low=1e-3, high=1.0),
        fields.number("contention", low=0.0, high=1.0),
        fields.integer("units", low=1, high=2**20),
        fields.integer("tile_rows", low=1, high=2**20),
        fields.integer("tile_columns", low=1, high=2**20),
    )


@cache
def presets() -> dict[str, Any]:
    """The device and cluster data file, each entry with its cited source."""
    data: dict[str, Any] = read_file(_PRESETS)
    return data


def prime_factors(count: int) -> list[int]:
    """Primes of ``count`` in ascending order; ``[]`` for 1."""
    factors, divisor = [], 2
    while divisor * divisor <= count:
        while count % divisor == 0:
            factors.append(divisor)
            count //= divisor
        divisor += 1
    return factors + [count] if count > 1 else factors


def load_cluster(spec: str) -> Cluster:
    """A cluster from a YAML/JSON path or a preset: ``dgx-a100-80g:8``, ``local:4``, ``local:2x2``, ``piz-daint``.

    ``PRESET:NODES`` overrides the preset's number of nodes, ``PRESET:NODESxDEVICES`` the devices of a node too, and a
    bare ``PRESET`` is the preset as its file has it. ``local:4`` is one level of 4 ranks. Raises ``InputError``.
    """
    path = Path(spec)
    if path.suffix in (".yaml", ".yml", ".json"):
        return Cluster.from_dict(read_file(path))
    name, colon, given = spec.partition(":")
    known = presets()["clusters"]
    if name not in known:
        choices = ", ".join(sorted(known))
        raise InputError("cluster", spec, f"a .yaml or .json file, or PRESET:NODES with one of {choices}")
    data = {"schema": SCHEMA, "name": spec, **known[name]}
    return Cluster.from_dict({**data, "levels": _counted(data["levels"], spec, given)} if colon else data)


def _counted(levels: list[dict[str, Any]], spec: str, given: str) -> list[dict[str, Any]]:
    """A preset's levels with the counts of ``NODES`` or ``NODESxDEVICES``."""
    match = re.fullmatch(r"(\d{1,40})(?:x(\d{1,40}))?", given, re.ASCII)
    if match is None:
        raise InputError("cluster", spec, "PRESET:NODES or PRESET:NODESxDEVICES is expected, such as local:2x2")
    nodes, devices = match.groups()
    counts = [check_integer("cluster.nodes", int(nodes), 1, MAX_DEVICES)]
    if devices is not None:
        counts.append(check_integer("cluster.devices_per_node", int(devices), 1, MAX_DEVICES))
    if len(counts) > len(levels):
        raise InputError("cluster", spec, f"PRESET:NODES is expected: {spec.partition(':')[0]} has one device a node")
    if spec.startswith("local:") and len(counts) == 1:
        return [{**levels[-1], "count": counts[0]}]
    counts += [level["count"] for level in levels[len(counts) :]]
    return [{**level, "count": count} for level, count in zip(levels, counts, strict=True)]
