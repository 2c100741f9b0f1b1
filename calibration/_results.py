"""Reads the results of a run, whole or partial, and makes a calibration of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autosbp.costmodel.calibration import BETA_FLOOR_S_PER_BYTE, Calibration, CollectiveFit, OpTime, Point
from autosbp.costmodel.launches import Launches
from autosbp.costmodel.overlap import Overlap
from autosbp.costmodel.sharing import Sharing
from autosbp.errors import CalibrationError, InputError
from autosbp.jsonio import loads, read_file
from calibration._fit import MIN_POINTS, fit_collective
from calibration._placements import Placement
from calibration._pooling import share_fits
from calibration._request import Measurement, Request, measurement_names, op_name

POOR_FIT = 0.25
"""Median relative error above which a fit is told: the cost model aims at a tenth."""


@dataclass(frozen=True, slots=True)
class Series:
    """One collective over one placement: what one fit is made of."""

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
    """What a results file holds so far; see ``calibration._worker`` for its lines.

    ``owner`` is the process that asked for the run, as id and start time, ``at_s`` when it did. ``begun`` are the names of
    the measurements that were started, in order; ``made`` are those that have a result or were left out, ``left_out`` the
    latter with the reason. ``taken`` tells that a calibration was made of them.
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
    sharing: Sharing | None = None
    launches: Launches | None = None
    ops: dict[str, OpTime] = field(default_factory=dict)
    done: bool = False
    taken: bool = False

    @property
    def current(self) -> str:
        """The measurement that was running when the file ended."""
        running = self.begun and self.begun[-1] not in self.made
        return self.begun[-1] if running else "between measurements" if self.begun else "start of the ranks"

    def read(self, line: bytes, where: str) -> None:
        """Add one line; raises ``InputError`` for what is none of a run's."""
        record = loads(line, where)
        try:
            self._take(record, where)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise InputError(
                where, line[:80].decode(errors="replace"), "a result of a calibration is expected"
            ) from None

    def _take(self, record: Mapping[str, Any], where: str) -> None:
        if "request" in record:  # a run begins, or is continued
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
            self.sharing = None if found is None else Sharing(found["speedup"], tuple(found["units"]))
            self.made.add(self.begun[-1])
        elif "launches" in record:
            self.launches = Launches(record["launches"]["forward_s"], record["launches"]["backward_s"])
            self.made.add(self.begun[-1])
        elif "op" in record:
            self.ops[record["op"]["key"]] = OpTime(record["op"]["forward_s"], record["op"]["backward_s"])
            self.made.add(self.begun[-1])
        elif "taken" in record:
            self.taken = True
        else:
            self.done = bool(record["done"])


def read_results(path: Path) -> Results:
    """Read a results file; a last line that is still being written is left out, and a missing file is an empty one."""
    return parse_results(path.read_bytes() if path.exists() else b"", path.name)


def parse_results(text: bytes, name: str) -> Results:
    """As ``read_results``, of what the file of this name holds."""
    results = Results()
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        where = f"{name} line {number}"
        results.read(line, where)
    return results


def read_partial(folder: Path) -> Calibration:
    """What a run that ended early has left in its folder, fitted as far as it goes; ``InputError`` for another folder."""
    names = ("request.json", "results.jsonl")
    if not all((folder / name).is_file() for name in names):
        limit = f"a folder of a calibration that ended early is expected, with {' and '.join(names)}"
        raise InputError("folder", str(folder), limit)
    document = read_file(folder / names[0])
    try:
        request = Request.from_dict(document)
    except (KeyError, TypeError):
        limit = "the request of a calibration by this release is expected"
        raise InputError(str(folder / names[0]), document, limit) from None
    return assemble(request, read_results(folder / names[1]), "relative", partial=True)


def assemble(request: Request, results: Results, method: str, partial: bool = False) -> Calibration:
    """Fit every kind and placement of ``results``; under the default method, those that cannot be told apart share a fit.

    With ``partial``, kinds and placements of too few points are left out, and the calibration says that it is not
    complete and where the run ended; without, an unfinished run raises ``CalibrationError`` that names the measurement it
    ended in.
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
        fits = share_fits(fits)
    notes = [*_ended_early(request, results), *_poor(fits), *_flat(fits, method)]
    notes += [*_few_repeats(request, fits), *_left_out(results)]
    return Calibration(
        request.cluster, request.backend, method, tuple(fits), results.ops, results.done, tuple(notes),
        overlap=results.overlap, sharing=results.sharing, launches=results.launches,
    )  # fmt: skip


def _ended_early(request: Request, results: Results) -> list[str]:
    if results.done:
        return []
    left = len(measurement_names(request)) - len(results.made)
    return [f"{results.current}: the run ended here, {left} measurements before its end"]


def _poor(fits: list[CollectiveFit]) -> list[str]:
    """Fits that are far from what was measured, which an intact file would not show."""
    missed = {_name(fit): fit.median_relative_error for fit in fits if fit.median_relative_error > POOR_FIT}
    if not missed:
        return []
    named = "; ".join(f"{name} ({100 * error:.0f} %)" for name, error in missed.items())
    limit = f"{100 * POOR_FIT:.0f} %"
    return [f"fits off by more than {limit} at half of their sizes, measure longer or on a machine at rest: {named}"]


def _name(fit: CollectiveFit) -> str:
    return Series(fit.kind, fit.group_shape, fit.placement, fit.num_groups).name


def _flat(fits: list[CollectiveFit], method: str) -> list[str]:
    return [
        f"{_name(fit)}: "
        "times do not grow with size; measure larger messages, which are predicted at the rate of the cluster's description"
        for fit in fits
        if method == "relative" and fit.last_beta_s_per_byte <= BETA_FLOOR_S_PER_BYTE
    ]


def _few_repeats(request: Request, fits: list[CollectiveFit]) -> list[str]:
    """A time box that was full before the repeats were made is told, with the least number that there was."""
    repeats = [point.num_repeats for fit in fits for point in fit.points]
    few = [count for count in repeats if count < request.repeats]
    if not few:
        return []
    return [f"{len(few)} of {len(repeats)} points have fewer than {request.repeats} repeats, the least {min(few)}"]


def _left_out(results: Results) -> list[str]:
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, reason in results.left_out.items():
        reasons[reason].append(name)
    return [f"left out, {reason}: {'; '.join(_shortened(names))}" for reason, names in reasons.items()]


def _shortened(names: list[str]) -> list[str]:
    """Names of collectives, once with all of their sizes; of ops, which are long and many, how many there are."""
    num_ops = sum(name.startswith(op_name("")) for name in names)
    sizes: dict[str, list[str]] = {}
    for name in names:
        if not name.startswith(op_name("")):
            series, _, size = name.rpartition(", ")
            sizes.setdefault(series, []).append(size.removesuffix(" bytes"))
    found = [f"{series}, {', '.join(all_sizes)} bytes" for series, all_sizes in sizes.items()]
    return [*found, f"{num_ops} of the lightest ops"] if num_ops else found
