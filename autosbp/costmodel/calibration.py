"""Calibration: what was measured on a cluster, as data (DESIGN section 7). Measuring itself is the package ``calibration``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autosbp.cluster import Cluster
from autosbp.errors import InputError
from autosbp.jsonio import Fields, check_integer, digest

SCHEMA = "autosbp.calibration/1"
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")


@dataclass(frozen=True, slots=True)
class Point:
    """One measured message size: median and interquartile range over ``num_repeats`` runs, slowest rank."""

    num_bytes: int
    median_s: float
    iqr_s: float
    num_repeats: int

    def to_list(self) -> list[float]:
        return [self.num_bytes, self.median_s, self.iqr_s, self.num_repeats]


@dataclass(frozen=True, slots=True)
class CollectiveFit:
    """alpha and beta of one collective over one group shape, with what they were fitted from.

    ``group_shape`` is units per cluster level, such as (2, 1): one device of each of two nodes. Points were taken with
    all groups of that shape running at once, so beta includes the sharing of links.
    """

    kind: str
    group_shape: tuple[int, ...]
    alpha_s: float
    beta_s_per_byte: float
    r2: float
    median_relative_error: float
    max_relative_error: float
    points: tuple[Point, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "group_shape": list(self.group_shape),
            "alpha_s": self.alpha_s,
            "beta_s_per_byte": self.beta_s_per_byte,
            "r2": self.r2,
            "median_relative_error": self.median_relative_error,
            "max_relative_error": self.max_relative_error,
            "points": [point.to_list() for point in self.points],
        }


@dataclass(frozen=True, slots=True)
class OpTime:
    """Measured seconds of one op at one local shape, forward and backward, all ranks running at once."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """All fits of one cluster. ``ops`` is keyed by ``autosbp.costmodel.op_key`` strings."""

    cluster: Cluster
    backend: str
    method: str
    collectives: tuple[CollectiveFit, ...]
    ops: Mapping[str, OpTime] = field(default_factory=dict)
    complete: bool = True
    notes: tuple[str, ...] = ()

    @property
    def calibration_id(self) -> str:
        return "cal-" + digest({**self.to_dict(), "calibration_id": None})

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "cluster": self.cluster.to_dict(),
            "backend": self.backend,
            "method": self.method,
            "collectives": [fit.to_dict() for fit in self.collectives],
            "ops": {key: [time.forward_s, time.backward_s] for key, time in sorted(self.ops.items())},
            "complete": self.complete,
            "notes": list(self.notes),
        }

    @staticmethod
    def from_dict(data: object) -> Calibration:
        """Read the file format; raises ``InputError`` that names the field."""
        fields = Fields(
            data, "", ("schema", "calibration_id", "cluster", "backend", "method", "collectives", "ops", "complete", "notes")
        )
        fields.schema(SCHEMA)
        cluster = Cluster.from_dict(fields.raw("cluster"))
        fits = tuple(
            _fit(entry, f"collectives[{index}]", len(cluster.levels))
            for index, entry in enumerate(fields.sequence("collectives"))
        )
        ops = {}
        for key, times in fields.mapping("ops", {}).items():
            entry = Fields({"forward_s": times[0], "backward_s": times[1]}, f"ops[{key}]", ("forward_s", "backward_s"))
            ops[str(key)] = OpTime(entry.number("forward_s"), entry.number("backward_s"))
        return Calibration(
            cluster,
            fields.text("backend", choices=("gloo", "nccl")),
            fields.text("method"),
            fits,
            ops,
            bool(fields.raw("complete", True)),
            tuple(str(note) for note in fields.sequence("notes", ())),
        )


def _fit(entry: object, path: str, num_levels: int) -> CollectiveFit:
    fields = Fields(
        entry,
        path,
        (
            "kind",
            "group_shape",
            "alpha_s",
            "beta_s_per_byte",
            "r2",
            "median_relative_error",
            "max_relative_error",
            "points",
        ),
    )
    shape = tuple(check_integer(f"{path}.group_shape", count, 1, 2**20) for count in fields.sequence("group_shape"))
    if len(shape) != num_levels:
        raise InputError(f"{path}.group_shape", shape, f"{num_levels} counts are expected, one per level of the cluster")
    points = tuple(Point(int(row[0]), float(row[1]), float(row[2]), int(row[3])) for row in fields.sequence("points"))
    return CollectiveFit(
        fields.text("kind", choices=KINDS),
        shape,
        fields.number("alpha_s"),
        fields.number("beta_s_per_byte"),
        fields.number("r2", low=-1e300),
        fields.number("median_relative_error"),
        fields.number("max_relative_error"),
        points,
    )
