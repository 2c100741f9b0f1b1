"""The request of a calibration run: message sizes, group placements, and the order of measurements."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from math import prod
from typing import Any

from autosbp.calibration._arrival_skew import LATE_S
from autosbp.calibration._placements import Placement, placements
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import KINDS
from autosbp.errors import InputError
from autosbp.utils.json_io import check_integer, digest

BACKENDS = ("gloo", "nccl")
MIN_SIZES = 3
ELEMENT_BYTES = 4  # messages are float32
MAX_SIZE_BYTES = 2**32
BUDGET_S = 165.0
"""Seconds. With the command's start and the fits, a calibration takes less than three minutes."""
OVERLAP = "compute during an all-reduce"
"""Name of the measurement of ``autosbp.calibration._overlap``."""
LAUNCH_OVERHEAD = "host overhead per op"
"""Name of the measurement of ``autosbp.calibration._launch_overhead``, which runs only on GPUs."""
CORE_CONTENTION = "compute while other ranks on the same cores wait"
"""Name of the measurement of ``autosbp.calibration._core_contention``."""
_KB, _MB, _GB = 2**10, 2**20, 2**30
# Steps of 4x from 1 KB. A run skips the largest sizes if time or memory does not suffice.
DEFAULT_SIZES = {
    "gloo": tuple(_KB * 4**step for step in range(8)),  # .. 16 MB
    "nccl": tuple(_KB * 4**step for step in range(11)),  # .. 1 GB
}
_TIME_LIMITS = ("timeout_s", "stall_s")  # limits of a run that do not affect what it finds


@dataclass(frozen=True, slots=True)
class Request:
    """Request of one calibration run; the fields are arguments of ``calibration.calibrate``.

    Time boxes in seconds: ``budget_s`` for the whole run, ``point_s`` for one size of one collective, ``op_s`` for one
    direction of one op; see ``autosbp.calibration._budget``. A size gets at most ``repeats`` repeats within its box, and at
    least three even if they exceed it. With ``variants``, other placements of the same group shapes are measured too:
    see ``autosbp.calibration._placements``. A run that measures nothing new for ``stall_s`` seconds fails. ``way`` describes
    how the ranks are started and over which interface.
    """

    cluster: Cluster
    backend: str
    sizes: tuple[int, ...] = DEFAULT_SIZES["gloo"]
    repeats: int = 30
    point_s: float = 1.0
    op_keys: tuple[str, ...] = ()
    op_s: float = 0.25
    timeout_s: float = 600.0
    budget_s: float = BUDGET_S
    stall_s: float = 60.0
    variants: bool = True
    way: str = ""

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise InputError("backend", self.backend, f"expected one of {', '.join(BACKENDS)}")
        for index, size in enumerate(self.sizes):
            check_integer(f"sizes[{index}]", size, 1, MAX_SIZE_BYTES)
        if len(set(self.sizes)) < MIN_SIZES:
            raise InputError("sizes", list(self.sizes), f"expected at least {MIN_SIZES} different sizes")
        for placement in placements(self.cluster.mesh(), variants=False):
            unit = ELEMENT_BYTES * prod(placement.group_shape)
            if len({-(-size // unit) for size in self.sizes}) < MIN_SIZES:
                limit = f"at least {MIN_SIZES} different multiples of {unit} bytes, to which sizes are rounded up for "
                raise InputError("sizes", list(self.sizes), f"expected {limit}{placement.name}")
        check_integer("repeats", self.repeats, 1, 10_000)
        for name in ("point_s", "op_s", "timeout_s", "budget_s", "stall_s"):
            value = getattr(self, name)
            if not 0 < value <= 1e6:
                raise InputError(name, value, "expected seconds in (0, 1e6]")

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in Request.__dataclass_fields__}
        return {**plain, "cluster": self.cluster.to_dict(), "sizes": list(self.sizes), "op_keys": list(self.op_keys)}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Request:
        cluster = Cluster.from_dict(data["cluster"])
        return Request(**{**data, "cluster": cluster, "sizes": tuple(data["sizes"]), "op_keys": tuple(data["op_keys"])})

    @property
    def request_id(self) -> str:
        """Hash that two runs must share for one to continue with the other's results.

        It covers the request, the host, the torch version and the ranks' arrival delay at collectives.
        """
        what = {name: value for name, value in self.to_dict().items() if name not in _TIME_LIMITS}
        return digest({**what, "host": platform.node(), "torch": version("torch"), "late_s": LATE_S})


@dataclass(frozen=True, slots=True)
class Measurement:
    """One collective at one size over the groups of a placement."""

    kind: str
    placement: Placement
    num_bytes: int

    @property
    def name(self) -> str:
        return f"{self.kind} over {self.placement.name}, {self.num_bytes} bytes"


def series(request: Request) -> Iterator[list[Measurement]]:
    """Every collective measurement of the run in order, grouped by kind and placement; a group is a list of sizes."""
    for placement in placements(request.cluster.mesh(), request.variants):
        for kind in KINDS:
            yield [Measurement(kind, placement, size) for size in sorted(set(request.sizes))]


@dataclass(frozen=True, slots=True)
class ArrivalDelay:
    """Measurement of the extra time that a collective takes when ranks come to it from computation."""

    kind: str
    placement: Placement

    @property
    def name(self) -> str:
        return f"{self.kind} over {self.placement.name}, between computation"


def arrival_delays(request: Request) -> list[ArrivalDelay]:
    """One measurement per collective and group shape, in the placement that the cost model charges plans with."""
    shapes = placements(request.cluster.mesh(), variants=False)
    return [ArrivalDelay(kind, placement) for placement in shapes for kind in KINDS]


def op_name(key: str) -> str:
    """Name of an op's measurement."""
    return f"op {key}"


def measurement_names(request: Request) -> list[str]:
    """Names of all measurements of the run, in order."""
    collectives = [one.name for sizes in series(request) for one in sizes]
    waits = [one.name for one in arrival_delays(request)]
    launches = [LAUNCH_OVERHEAD] if request.backend == "nccl" else []
    return [*collectives, *waits, OVERLAP, CORE_CONTENTION, *launches, *map(op_name, request.op_keys)]
