"""What a run measures: the sizes, the group shapes of the cluster's mesh, and the order of the measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import KINDS
from autosbp.errors import InputError
from autosbp.jsonio import check_integer
from autosbp.sbp.mesh import Mesh

BACKENDS = ("gloo", "nccl")
DEFAULT_SIZES = tuple(2**power for power in range(10, 25, 2))  # 1 KB .. 16 MB
MIN_SIZES = 3
MAX_SIZE_BYTES = 2**32


@dataclass(frozen=True, slots=True)
class Request:
    """One run. ``point_s`` and ``op_s`` are the time boxes of one collective size and of one direction of one op.

    A box is shared by at most ``repeats`` repeats, and by at least three even where they take longer.
    """

    cluster: Cluster
    backend: str
    sizes: tuple[int, ...] = DEFAULT_SIZES
    repeats: int = 10
    point_s: float = 0.25
    op_keys: tuple[str, ...] = ()
    op_s: float = 0.25
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise InputError("backend", self.backend, f"one of {', '.join(BACKENDS)} is expected")
        for index, size in enumerate(self.sizes):
            check_integer(f"sizes[{index}]", size, 1, MAX_SIZE_BYTES)
        if len(set(self.sizes)) < MIN_SIZES:
            raise InputError("sizes", list(self.sizes), f"at least {MIN_SIZES} different sizes are expected")
        check_integer("repeats", self.repeats, 1, 10_000)
        for name in ("point_s", "op_s", "timeout_s"):
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


@dataclass(frozen=True, slots=True)
class Measurement:
    """One collective at one size over all groups of ``axes`` at once."""

    kind: str
    group_shape: tuple[int, ...]
    axes: tuple[int, ...]
    num_bytes: int

    @property
    def name(self) -> str:
        return f"{self.kind} over {'x'.join(map(str, self.group_shape))}, {self.num_bytes} bytes"


def measurements(request: Request) -> Iterator[Measurement]:
    """Every collective measurement of the run, in the order in which it is made."""
    for shape, axes in group_axes(request.cluster.mesh()).items():
        for kind in KINDS:
            for size in sorted(set(request.sizes)):
                yield Measurement(kind, shape, axes, size)


def op_name(key: str) -> str:
    """The name of the measurement of one op."""
    return f"op {key}"


def measurement_names(request: Request) -> list[str]:
    """The names of all measurements of the run, in order."""
    return [one.name for one in measurements(request)] + [op_name(key) for key in request.op_keys]


def group_axes(mesh: Mesh) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Each distinct shape of a group of two or more ranks, with the first set of axes that has it.

    Shapes are enumerated level by level as products of axis sizes, so a mesh of many axes costs no power set.
    """
    levels: list[dict[int, tuple[int, ...]]] = [{1: ()} for _ in mesh.level_counts]
    for index, axis in enumerate(mesh.axes):
        known = levels[axis.level]
        for count, axes in list(known.items()):
            known.setdefault(count * axis.size, (*axes, index))
    chosen = {}
    for counts in product(*(sorted(level) for level in levels)):
        axes = tuple(sorted(axis for level, count in zip(levels, counts, strict=True) for axis in level[count]))
        if axes:
            chosen[counts] = axes
    return chosen
