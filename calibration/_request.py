"""What a run measures: the sizes, the placements of groups on the cluster's mesh, and the order of the measurements."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from math import prod
from typing import Any

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import KINDS
from autosbp.errors import InputError
from autosbp.jsonio import check_integer, digest
from calibration._arrival import LATE_S
from calibration._placements import Placement, placements

BACKENDS = ("gloo", "nccl")
MIN_SIZES = 3
ELEMENT_BYTES = 4  # messages are of float32
MAX_SIZE_BYTES = 2**32
BUDGET_S = 165.0
"""With the start of the command and the fits, a calibration so takes less than three minutes."""
OVERLAP = "compute beside an all-reduce"
"""The name of the measurement of ``calibration._overlap``."""
LAUNCHES = "the host asking for ops"
"""The name of the measurement of ``calibration._launches``, of GPUs alone."""
SHARING = "compute while others of the same cores wait"
"""The name of the measurement of ``calibration._sharing``."""
_KB, _MB, _GB = 2**10, 2**20, 2**30
# Steps of 4x from 1 KB. A run leaves out the largest where time or memory does not hold them.
DEFAULT_SIZES = {
    "gloo": tuple(_KB * 4**step for step in range(8)),  # .. 16 MB
    "nccl": tuple(_KB * 4**step for step in range(11)),  # .. 1 GB
}
_HOW_LONG = ("timeout_s", "stall_s")  # they limit a run, and say nothing of what it finds


@dataclass(frozen=True, slots=True)
class Request:
    """One run. ``budget_s`` is the time box of all of it, ``point_s`` that of one size of one collective, ``op_s`` that of
    one direction of one op; see ``calibration._budget``.

    The box of a size is shared by at most ``repeats`` repeats, and by at least three even where they take longer. With
    ``variants``, other placements of the same group shapes are measured, too: see ``calibration._placements``. A run
    that measures nothing new for ``stall_s`` hangs. ``way`` tells how the ranks are started and over what they talk.
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
            raise InputError("backend", self.backend, f"one of {', '.join(BACKENDS)} is expected")
        for index, size in enumerate(self.sizes):
            check_integer(f"sizes[{index}]", size, 1, MAX_SIZE_BYTES)
        if len(set(self.sizes)) < MIN_SIZES:
            raise InputError("sizes", list(self.sizes), f"at least {MIN_SIZES} different sizes are expected")
        for placement in placements(self.cluster.mesh(), variants=False):
            unit = ELEMENT_BYTES * prod(placement.group_shape)
            if len({-(-size // unit) for size in self.sizes}) < MIN_SIZES:
                limit = f"at least {MIN_SIZES} different multiples of {unit} bytes, to which they are rounded up for "
                raise InputError("sizes", list(self.sizes), f"{limit}{placement.name}, are expected")
        check_integer("repeats", self.repeats, 1, 10_000)
        for name in ("point_s", "op_s", "timeout_s", "budget_s", "stall_s"):
            value = getattr(self, name)
            if not 0 < value <= 1e6:
                raise InputError(name, value, "seconds in (0, 1e6] are expected")

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in Request.__dataclass_fields__}
        return {**plain, "cluster": self.cluster.to_dict(), "sizes": list(self.sizes), "op_keys": list(self.op_keys)}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Request:
        cluster = Cluster.from_dict(data["cluster"])
        return Request(**{**data, "cluster": cluster, "sizes": tuple(data["sizes"]), "op_keys": tuple(data["op_keys"])})

    @property
    def request_id(self) -> str:
        """What must be equal for one run to go on with the results of another: the request, the host, the torch, and how
        ranks come to collectives."""
        what = {name: value for name, value in self.to_dict().items() if name not in _HOW_LONG}
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
    """Every collective measurement of the run, in the order in which it is made: the sizes of one kind and placement."""
    for placement in placements(request.cluster.mesh(), request.variants):
        for kind in KINDS:
            yield [Measurement(kind, placement, size) for size in sorted(set(request.sizes))]


@dataclass(frozen=True, slots=True)
class Waiting:
    """How much longer a collective takes between computation than alone."""

    kind: str
    placement: Placement

    @property
    def name(self) -> str:
        return f"{self.kind} over {self.placement.name}, between computation"


def waitings(request: Request) -> list[Waiting]:
    """For each collective and group shape, in the placement that plans are charged with."""
    shapes = placements(request.cluster.mesh(), variants=False)
    return [Waiting(kind, placement) for placement in shapes for kind in KINDS]


def op_name(key: str) -> str:
    """The name of the measurement of one op."""
    return f"op {key}"


def measurement_names(request: Request) -> list[str]:
    """The names of all measurements of the run, in order."""
    collectives = [one.name for sizes in series(request) for one in sizes]
    waits = [one.name for one in waitings(request)]
    launches = [LAUNCHES] if request.backend == "nccl" else []
    return [*collectives, *waits, OVERLAP, SHARING, *launches, *map(op_name, request.op_keys)]
