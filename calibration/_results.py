"""Read the results of a run, complete or partial, and build a calibration from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autosbp.calibration._alpha_beta_fit import MIN_POINTS, fit_collective
from autosbp.calibration._fit_pooling import pool_fits
from autosbp.calibration._placements import Placement
from autosbp.calibration._request import Measurement, Request, measurement_names, op_name
from autosbp.costmodel.calibration import BETA_FLOOR_S_PER_BYTE, Calibration, CollectiveFit, OpTime, Point
from autosbp.costmodel.compute_contention import ComputeSharing
from autosbp.costmodel.launch_overhead import LaunchOverhead
from autosbp.costmodel.overlap import Overlap
from autosbp.errors import CalibrationError, InputError
from autosbp.sandbox.regular_files import read_regular
from autosbp.utils.json_io import loads, read_file

MAX_MEDIAN_ERROR = 0.25
"""Median relative error above which a fit is reported as poor; the cost model aims at 0.1."""


@dataclass(frozen=True, slots=True)
class Series:
    """One collective over one placement: the points of one fit."""

    kind: str
    group_shape: tuple[int, ...]
    label: str | None
    num_groups: int | None

    @staticmethod
    def of(measurement: Measurement) -> Series:
        placement = measurement.placement
        return Series(measurement.kind, placement.group_shape, placement.label, placement.num_groups)

    @property
    def name(self) -> str:
        return f"{self.kind} over {Placement(self.group_shape, (), self.label, self.num_groups).name}"


@dataclass(slots=True)
class Results:
    """Contents of a results file so far; ``autosbp.calibration._rank_worker`` describes its lines.

    Attributes:
        owner: process that requested the run, as (pid, start time).
        at_s: time of the request, in seconds since the epoch.
        pids: processes of the ranks.
        begun: names of the measurements that were started, in order.
        made: names of the measurements that have a result or were skipped.
        left_out: names of the skipped measurements, with the reason.
        taken: whether a calibration was made from the results.
    """

    request_id: str | None = None
    owner: tuple[int, int] | None = None
    at_s: float | None = None
    pids: tuple[int, ...] = ()
    begun: list[str] = field(default_factory=list)
    made: set[str] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)
    points: dict[Series, list[Point]] = field(default_factory=lambda: defaultdict(list))
    waiting_s: dict[tuple[str, tuple[int, ...]], float] = field(default_factory=dict)
    overlap: Overlap | None = None
    sharing: ComputeSharing | None = None
    launches: LaunchOverhead | None = None
    ops: dict[str, OpTime] = field(default_factory=dict)
    done: bool = False
    taken: bool = False

    @property
    def current(self) -> str:
        """The measurement that was running when the file ended."""
        running = self.begun and self.begun[-1] not in self.made
        return self.begun[-1] if running else "between measurements" if self.begun else "start of the ranks"

    def read(self, line: bytes, where: str) -> None:
        """Add one line; raises ``InputError`` if it is not a valid result."""
        record = loads(line, where)
        try:
            self._add_record(record, where)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise InputError(where, line[:80].decode(errors="replace"), "expected a result of a calibration") from None

    def _add_record(self, record: Mapping[str, Any], where: str) -> None:
        if "request" in record:  # a run begins or continues
            self.request_id, self.pids, self.begun = record["request"], (), []
            self.owner = tuple(record["owner"]) if "owner" in record else None
            self.at_s = record.get("at_s")
        elif "ranks" in record:
            self.pids = tuple(record["ranks"])
        elif "begin" in record:
            self.begun.append(record["begin"])
        elif "left_out" in record:
            self.left_out[self.begun[-1]] = record["left_out"]
            self.made.add(self.begun[-1])
        elif "point" in record:
            found = record["point"]
            series = Series(found["kind"], tuple(found["group_shape"]), found.get("placement"), found.get("num_groups"))
            self.points[series].append(Point.from_list(found["values"], where))
            self.made.add(self.begun[-1])
        elif "waiting" in record:
            found = record["waiting"]
            self.waiting_s[found["kind"], tuple(found["group_shape"])] = found["seconds"]
            self.made.add(self.begun[-1])
        elif "overlap" in record:
            found = record["overlap"]
            self.overlap = Overlap(found["compute"], found["network"], found.get("message", 0.0))
            self.made.add(self.begun[-1])
        elif "sharing" in record:
            found = record["sharing"]
            self.sharing = None if found is None else ComputeSharing(found["speedup"], tuple(found["units"]))
            self.made.add(self.begun[-1])
        elif "launches" in record:
            self.launches = LaunchOverhead(record["launches"]["forward_s"], record["launches"]["backward_s"])
            self.made.add(self.begun[-1])
        elif "op" in record:
            self.ops[record["op"]["key"]] = OpTime(record["op"]["forward_s"], record["op"]["backward_s"])
            self.made.add(self.begun[-1])
        elif "taken" in record:
            self.taken = True
        else:
            self.done = bool(record["done"])


def read_results(path: Path) -> Results:
    """Read a results file; an incomplete last line is ignored, and a missing file counts as empty."""
    return parse_results(read_regular(path) if path.exists() else b"", path.name)


def parse_results(text: bytes, name: str) -> Results:
    """Parse the contents of a results file; ``name`` is for error messages."""
    results = Results()
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        where = f"{name} line {number}"
        results.read(line, where)
    return results


def read_partial(folder: Path) -> Calibration:
    """Fit the results in the folder of an interrupted run; ``InputError`` if it is not such a folder."""
    names = ("request.json", "results.jsonl")
    if not all((folder / name).is_file() for name in names):
        limit = f"expected the folder of an unfinished calibration, with {' and '.join(names)}"
        raise InputError("folder", str(folder), limit)
    document = read_file(folder / names[0])
    try:
        request = Request.from_dict(document)
    except (KeyError, TypeError):
        limit = "expected the request of a calibration of this release"
        raise InputError(str(folder / names[0]), document, limit) from None
    return assemble(request, read_results(folder / names[1]), "relative", partial=True)


def assemble(request: Request, results: Results, method: str, partial: bool = False) -> Calibration:
    """Fit every kind and placement of ``results``; with method ``relative``, fits that cannot be told apart are pooled.

    With ``partial``, series with too few points are skipped, and the calibration is marked incomplete with a note on
    where the run ended. Otherwise an unfinished run raises ``CalibrationError`` that names the measurement.
    """
    if not partial:
        for reason in _ended_early(request, results):
            raise CalibrationError(reason)
    fits = []
    for series, points in results.points.items():
        if not partial or len(points) >= MIN_POINTS:
            fit = fit_collective(series.kind, series.group_shape, points, method)
            waiting_s = results.waiting_s.get((series.kind, series.group_shape), 0.0)
            fits.append(replace(fit, placement=series.label, num_groups=series.num_groups, waiting_s=waiting_s))
    if method == "relative":
        fits = pool_fits(fits)
    notes = [*_ended_early(request, results), *_poor_fit_notes(fits), *_flat_fit_notes(fits, method)]
    notes += [*_few_repeats(request, fits), *_skipped_notes(results)]
    return Calibration(
        request.cluster, request.backend, method, tuple(fits), results.ops, results.done, tuple(notes),
        overlap=results.overlap, sharing=results.sharing, launches=results.launches,
    )  # fmt: skip


def _ended_early(request: Request, results: Results) -> list[str]:
    if results.done:
        return []
    left = len(measurement_names(request)) - len(results.made)
    return [f"{results.current}: the run stopped here, with {left} measurements left"]


def _poor_fit_notes(fits: list[CollectiveFit]) -> list[str]:
    """Note on fits far from the measurements, which otherwise look normal in the file."""
    missed = {_name(fit): fit.median_relative_error for fit in fits if fit.median_relative_error > MAX_MEDIAN_ERROR}
    if not missed:
        return []
    named = "; ".join(f"{name} ({100 * error:.0f} %)" for name, error in missed.items())
    limit = f"{100 * MAX_MEDIAN_ERROR:.0f} %"
    return [f"fits with errors above {limit} at half of their sizes (measure longer, or on an idle machine): {named}"]


def _name(fit: CollectiveFit) -> str:
    return Series(fit.kind, fit.group_shape, fit.placement, fit.num_groups).name


def _flat_fit_notes(fits: list[CollectiveFit], method: str) -> list[str]:
    return [
        f"{_name(fit)}: times do not grow with size; measure larger messages: until then they are predicted from "
        "the cluster file"
        for fit in fits
        if method == "relative" and fit.last_beta_s_per_byte <= BETA_FLOOR_S_PER_BYTE
    ]


def _few_repeats(request: Request, fits: list[CollectiveFit]) -> list[str]:
    """Note on points that have fewer repeats than requested because their time box was full."""
    repeats = [point.num_repeats for fit in fits for point in fit.points]
    few = [count for count in repeats if count < request.repeats]
    if not few:
        return []
    return [f"{len(few)} of {len(repeats)} points have fewer than {request.repeats} repeats (minimum {min(few)})"]


def _skipped_notes(results: Results) -> list[str]:
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, reason in results.left_out.items():
        reasons[reason].append(name)
    return [f"skipped ({reason}): {'; '.join(_shortened(names))}" for reason, names in reasons.items()]


def _shortened(names: list[str]) -> list[str]:
    """Collectives once each with all their sizes; ops, whose names are long and many, only as a count."""
    num_ops = sum(name.startswith(op_name("")) for name in names)
    sizes: dict[str, list[str]] = {}
    for name in names:
        if not name.startswith(op_name("")):
            series, _, size = name.rpartition(", ")
            sizes.setdefault(series, []).append(size.removesuffix(" bytes"))
    found = [f"{series}, {', '.join(all_sizes)} bytes" for series, all_sizes in sizes.items()]
    return [*found, f"{num_ops} of the lightest ops"] if num_ops else found
