"""Measurements of a cluster as data. The package ``calibration`` measures.

Fields that later releases added to the file format are optional and written only if used: older documents stay readable
and keep their bytes and ids.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.compute_contention import ComputeSharing
from autosbp.costmodel.launch_overhead import LaunchOverhead
from autosbp.costmodel.overlap import Overlap
from autosbp.errors import InputError
from autosbp.utils.json_io import FULL_DIGEST_DIGITS, HASH_DIGITS, Fields, check_integer, digest, read_nested

SCHEMA = "autosbp.calibration/1"
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")
PLACEMENTS = ("contiguous", "strided")
METHODS = ("relative", "ols")
"""Fit methods, see ``autosbp.calibration._alpha_beta_fit``; only "ols" may give alpha below 0 or beta of 0 or less."""
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
MAX_NAME = 100
BETA_FLOOR_S_PER_BYTE = 1e-15
"""Minimum fitted beta, 1 PB/s: times that do not grow with size only show that beta is too small to measure."""
_MAX = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of the samples of a point, in seconds: median absolute deviation, and ``QUANTILES``.

    Some collectives have two typical times, up to 2x apart: quantiles show it, a median does not.
    """

    mad_s: float
    quantiles_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One measured message size: median and interquartile range over ``num_repeats`` runs, slowest rank."""

    num_bytes: int
    median_s: float
    iqr_s: float
    num_repeats: int
    spread: Spread | None = None

    def to_list(self) -> list[Any]:
        plain = [self.num_bytes, self.median_s, self.iqr_s, self.num_repeats]
        return plain if self.spread is None else [*plain, self.spread.mad_s, list(self.spread.quantiles_s)]

    @staticmethod
    def from_list(row: object, path: str) -> Point:
        """Inverse of ``to_list``; raises ``InputError`` that names the field below ``path``."""
        names = ("num_bytes", "median_s", "iqr_s", "num_repeats")
        if not isinstance(row, (list, tuple)) or len(row) not in (len(names), len(names) + 2):
            raise InputError(path, row, f"expected [{', '.join(names)}], optionally with mad_s and quantiles_s")
        plain, spread = row[: len(names)], row[len(names) :]
        fields = Fields(dict(zip(names, plain, strict=True)), path, names)
        return Point(
            fields.integer("num_bytes", low=1),
            fields.positive("median_s"),
            fields.number("iqr_s", high=_MAX),
            fields.integer("num_repeats", low=1),
            _spread(spread[0], spread[1], path) if spread else None,
        )


@dataclass(frozen=True, slots=True)
class CollectiveFit:
    """alpha and beta of one collective over one group shape, with the points that they were fitted to.

    ``knots`` are (bytes, beta) pairs: from that size on, further bytes cost that beta. The 95 % intervals are those of
    alpha and of the first beta; ``outliers`` are the sizes whose points got little weight in the fit.

    ``group_shape`` is units per cluster level, such as (2, 1): one device of each of two nodes. All groups of that
    shape ran at once, so beta includes the sharing of links; if ``num_groups`` is set, only that many ran. Where groups
    of one shape can lie in two ways within the innermost level, ``placement`` tells which: ``contiguous`` groups hold
    neighbours, ``strided`` ones every k-th device. Plans are charged with the first fit of a kind and shape with all
    groups.

    ``waiting_s`` is the extra time of a collective whose ranks come from computation: ranks that share cores do not
    arrive at once, and do not react to a message at once.

    ``shared_with`` names other collectives of the same group shape, with their placement if they have one, that are
    statistically indistinguishable from this one: alpha, beta, knots and intervals are fitted to the points of all of
    them.

    ``r2`` is of the plain residuals in seconds; the relative errors are of ``|predicted - median| / median``. Plain
    least squares ("ols") may give an alpha or beta below zero.
    """

    kind: str
    group_shape: tuple[int, ...]
    alpha_s: float
    beta_s_per_byte: float
    r2: float
    median_relative_error: float
    max_relative_error: float
    points: tuple[Point, ...]
    knots: tuple[tuple[int, float], ...] = ()
    alpha_interval_s: tuple[float, float] | None = None
    beta_interval_s_per_byte: tuple[float, float] | None = None
    outliers: tuple[int, ...] = ()
    placement: str | None = None
    num_groups: int | None = None
    waiting_s: float = 0.0
    shared_with: tuple[str, ...] = ()

    @property
    def last_beta_s_per_byte(self) -> float:
        """Seconds per further byte for the largest messages."""
        return self.knots[-1][1] if self.knots else self.beta_s_per_byte

    def to_dict(self) -> dict[str, Any]:
        document = {
            "kind": self.kind,
            "group_shape": list(self.group_shape),
            "alpha_s": self.alpha_s,
            "beta_s_per_byte": self.beta_s_per_byte,
            "r2": self.r2,
            "median_relative_error": self.median_relative_error,
            "max_relative_error": self.max_relative_error,
            "points": [point.to_list() for point in self.points],
        }
        optional = {
            "knots": [list(knot) for knot in self.knots],
            "alpha_interval_s": list(self.alpha_interval_s or ()),
            "beta_interval_s_per_byte": list(self.beta_interval_s_per_byte or ()),
            "outliers": list(self.outliers),
            "placement": self.placement,
            "num_groups": self.num_groups,
            "waiting_s": self.waiting_s,
            "shared_with": list(self.shared_with),
        }
        return document | {key: value for key, value in optional.items() if value}


@dataclass(frozen=True, slots=True)
class OpTime:
    """Measured seconds of one op at one local shape, forward and backward, all ranks running at once."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True)
class Correction:
    """Correction learned from trials (``costmodel.calibration_correction``).

    Args:
        compute, network: factors of op and collective times, from ``LOW`` to ``HIGH``.
        waiting_s: extra seconds of a collective between ops.
        num_trials: trials that it was fitted to.
    """

    LOW: ClassVar[float] = 0.5
    HIGH: ClassVar[float] = 2.0

    compute: float
    network: float
    waiting_s: float
    num_trials: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """All fits of one cluster.

    ``ops`` is keyed by ``costmodel.compute.op_key`` strings. ``corrections`` are oldest first; the last is in effect.
    """

    cluster: Cluster
    backend: str
    method: str
    collectives: tuple[CollectiveFit, ...]
    ops: Mapping[str, OpTime] = field(default_factory=dict)
    complete: bool = True
    notes: tuple[str, ...] = ()
    corrections: tuple[Correction, ...] = ()
    overlap: Overlap | None = None
    sharing: ComputeSharing | None = None
    launches: LaunchOverhead | None = None

    @property
    def correction(self) -> Correction:
        """The correction in effect."""
        return self.corrections[-1] if self.corrections else Correction(1.0, 1.0, 0.0, 0)

    @property
    def content_hash(self) -> str:
        """SHA-256 of the document without its id."""
        return digest({**self.to_dict(), "calibration_id": None}, FULL_DIGEST_DIGITS)

    @property
    def calibration_id(self) -> str:
        return f"cal-{self.content_hash[:HASH_DIGITS]}"

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
            **({"corrections": [asdict(one) for one in self.corrections]} if self.corrections else {}),
            **({"overlap": self.overlap.to_dict()} if self.overlap else {}),
            **({"sharing": self.sharing.to_dict()} if self.sharing else {}),
            **({"launches": self.launches.to_dict()} if self.launches else {}),
        }

    @staticmethod
    def from_dict(data: object) -> Calibration:
        """Read the file format; raises ``InputError`` that names the field."""
        fields = Fields(
            data,
            "",
            (
                "schema",
                "calibration_id",
                "cluster",
                "backend",
                "method",
                "collectives",
                "ops",
                "complete",
                "notes",
                "corrections",
                "overlap",
                "sharing",
                "launches",
            ),
            SCHEMA,
        )
        cluster = read_nested("cluster", Cluster.from_dict, fields.raw("cluster"))
        limits = tuple(level.count for level in cluster.levels)
        method = fields.text("method", choices=METHODS)
        calibration = Calibration(
            cluster,
            fields.text("backend", choices=("gloo", "nccl")),
            method,
            tuple(
                _fit(entry, f"collectives[{index}]", limits, signed=method == "ols")
                for index, entry in enumerate(fields.sequence("collectives"))
            ),
            {str(key): _op_time(times, f"ops[{key}]") for key, times in fields.mapping("ops", {}).items()},
            _flag(fields.raw("complete", True)),
            tuple(_note(note, index) for index, note in enumerate(fields.sequence("notes", ()))),
            tuple(
                _correction(entry, f"corrections[{index}]")
                for index, entry in enumerate(fields.sequence("corrections", ()))
            ),
            _overlap(fields.raw("overlap")) if fields.has("overlap") else None,
            ComputeSharing.from_dict(fields.raw("sharing"), "sharing", cluster.num_devices)
            if fields.has("sharing")
            else None,
            _launches(fields.raw("launches")) if fields.has("launches") else None,
        )
        keys = set[tuple[object, ...]]()
        for index, fit in enumerate(calibration.collectives):
            key = (fit.kind, fit.group_shape, fit.placement, fit.num_groups)
            if key in keys:
                limit = "expected one fit per kind, group shape, placement and number of groups"
                raise InputError(f"collectives[{index}]", key, limit)
            keys.add(key)
        given = fields.raw("calibration_id", None)
        if given is not None and given != calibration.calibration_id:
            raise InputError("calibration_id", given, f"the id of these contents is {calibration.calibration_id}")
        return calibration


def _correction(entry: object, path: str) -> Correction:
    fields = Fields(entry, path, ("compute", "network", "waiting_s", "num_trials"))
    low, high = Correction.LOW, Correction.HIGH
    return Correction(
        fields.number("compute", low=low, high=high),
        fields.number("network", low=low, high=high),
        fields.number("waiting_s", high=_MAX),
        fields.integer("num_trials", low=1),
    )


def _overlap(entry: object) -> Overlap:
    fields = Fields(entry, "overlap", ("compute", "network", "message"))
    return Overlap(
        fields.number("compute", high=Overlap.HIGH),
        fields.number("network", high=Overlap.HIGH),
        fields.number("message", 0.0, high=Overlap.HIGH),
    )


def _launches(entry: object) -> LaunchOverhead:
    fields = Fields(entry, "launches", ("forward_s", "backward_s"))
    return LaunchOverhead(
        fields.number("forward_s", high=LaunchOverhead.HIGH), fields.number("backward_s", high=LaunchOverhead.HIGH)
    )


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError("complete", value, "expected true or false")
    return value


def _note(value: object, index: int) -> str:
    if not isinstance(value, str):
        raise InputError(f"notes[{index}]", value, "expected a string")
    return value


def _op_time(times: object, path: str) -> OpTime:
    if not isinstance(times, (list, tuple)) or len(times) != 2:
        raise InputError(path, times, "expected [forward_s, backward_s]")
    fields = Fields({"forward_s": times[0], "backward_s": times[1]}, path, ("forward_s", "backward_s"))
    return OpTime(fields.number("forward_s", high=_MAX), fields.number("backward_s", high=_MAX))


def _spread(mad_s: object, quantiles_s: object, path: str) -> Spread:
    fields = Fields({"mad_s": mad_s, "quantiles_s": quantiles_s}, path, ("mad_s", "quantiles_s"))
    row = fields.sequence("quantiles_s")
    names = [f"{quantile:g}" for quantile in QUANTILES]
    if len(row) != len(names):
        raise InputError(fields.at("quantiles_s"), row, f"expected the quantiles {', '.join(names)}")
    entry = Fields(dict(zip(names, row, strict=True)), fields.at("quantiles_s"), names)
    values = tuple(entry.number(name, high=_MAX) for name in names)
    if values != tuple(sorted(values)):
        raise InputError(fields.at("quantiles_s"), row, "expected times in ascending order")
    return Spread(fields.number("mad_s", high=_MAX), values)


def _fit(entry: object, path: str, limits: tuple[int, ...], signed: bool) -> CollectiveFit:
    """Read a fit; ``signed`` fits may have alpha below 0 and beta of 0 or less."""
    fields = Fields(entry, path, tuple(CollectiveFit.__dataclass_fields__))
    counts = fields.sequence("group_shape")
    if len(counts) != len(limits):
        raise InputError(f"{path}.group_shape", counts, f"expected {len(limits)} counts, one per level of the cluster")
    shape = tuple(
        check_integer(f"{path}.group_shape[{index}]", count, 1, limits[index]) for index, count in enumerate(counts)
    )
    points = tuple(
        Point.from_list(row, f"{path}.points[{index}]") for index, row in enumerate(fields.sequence("points"))
    )
    return CollectiveFit(
        fields.text("kind", choices=KINDS),
        shape,
        fields.number("alpha_s", low=-_MAX if signed else 0.0, high=_MAX),
        fields.number("beta_s_per_byte", low=-_MAX, high=_MAX) if signed else fields.positive("beta_s_per_byte"),
        fields.number("r2", low=-_MAX, high=1.0),
        fields.number("median_relative_error", high=_MAX),
        fields.number("max_relative_error", high=_MAX),
        points,
        _knots(fields),
        _interval(fields, "alpha_interval_s"),
        _interval(fields, "beta_interval_s_per_byte"),
        tuple(check_integer(fields.at("outliers"), size, 1, 2**53) for size in fields.sequence("outliers", ())),
        fields.text("placement", choices=PLACEMENTS) if fields.has("placement") else None,
        fields.integer("num_groups", low=1) if fields.has("num_groups") else None,
        fields.number("waiting_s", 0.0, high=_MAX),
        tuple(_text(name, fields.at("shared_with")) for name in fields.sequence("shared_with", ())),
    )


def _text(value: object, path: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
        raise InputError(path, value, f"expected names of 1 to {MAX_NAME} characters")
    return value


def _knots(fields: Fields) -> tuple[tuple[int, float], ...]:
    """Read ascending (bytes, beta) pairs with positive betas."""
    knots: list[tuple[int, float]] = []
    for at, row in enumerate(fields.sequence("knots", ())):
        path = f"{fields.at('knots')}[{at}]"
        if not isinstance(row, (list, tuple)) or len(row) != 2:
            raise InputError(path, row, "expected [bytes, beta_s_per_byte]")
        entry = Fields({"num_bytes": row[0], "beta_s_per_byte": row[1]}, path, ("num_bytes", "beta_s_per_byte"))
        low = knots[-1][0] + 1 if knots else 1
        knots.append((entry.integer("num_bytes", low=low), entry.positive("beta_s_per_byte")))
    return tuple(knots)


def _interval(fields: Fields, key: str) -> tuple[float, float] | None:
    if not fields.has(key):
        return None
    row = fields.sequence(key)
    if len(row) != 2:
        raise InputError(fields.at(key), row, "expected [low, high]")
    entry = Fields({"low": row[0], "high": row[1]}, fields.at(key), ("low", "high"))
    low = entry.number("low", low=-_MAX, high=_MAX)
    return low, entry.number("high", low=low, high=_MAX)
