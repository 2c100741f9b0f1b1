"""A calibration: measured points against the fits, and the fits' parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autosbp.costmodel.calibration import Calibration, CollectiveFit, Point
from autosbp.costmodel.network import fitted_s
from autosbp.service.models import CalibrationRow
from autosbp.service.web.number_format import number, rate, seconds, share, short, time_unit
from autosbp.service.web.presenters.page_parts import Chart, Fact, Figure, Table
from autosbp.service.web.presenters.request_words import op_words

_LINE_POINTS = 48
_LOW, _HIGH = 2, 4
"""Indices of the quartiles in ``autosbp.costmodel.calibration.QUANTILES``."""


@dataclass(frozen=True, slots=True)
class FitView:
    """The fit of one collective over one group shape."""

    key: str
    name: str
    chart: Chart


@dataclass(frozen=True, slots=True)
class CalibrationView:
    """Content of the page, except for the row's own columns."""

    figures: tuple[Figure, ...]
    fits: tuple[FitView, ...]
    table: Table
    ops: Table
    num_ops: int
    corrections: Table | None
    notes: tuple[str, ...]
    facts: tuple[Fact, ...]


def calibration_view(row: CalibrationRow, most_ops: int) -> CalibrationView:
    """Build the page of a stored calibration with its document; it shows the ``most_ops`` slowest ops."""
    found = Calibration.from_dict(row.document)
    return CalibrationView(
        _figures(row, found),
        tuple(FitView(f"fit-{at}", name_of(fit), _chart(fit, at)) for at, fit in enumerate(found.collectives)),
        _fits(found.collectives),
        _ops(found, most_ops),
        len(found.ops),
        _corrections(found),
        found.notes,
        _facts(row, found),
    )


def name_of(fit: CollectiveFit) -> str:
    """Name of a fit, such as ``all-reduce over 2 × 2``."""
    shape = " × ".join(map(str, fit.group_shape))
    alone = None if fit.num_groups is None else f"{fit.num_groups} at once"
    more = ", ".join(filter(None, [fit.placement, alone]))
    return f"{fit.kind.replace('_', '-')} over {shape}" + (f" ({more})" if more else "")


def _figures(row: CalibrationRow, found: Calibration) -> tuple[Figure, ...]:
    errors = sorted(fit.median_relative_error for fit in found.collectives)
    worst = max((fit.max_relative_error for fit in found.collectives), default=0.0)
    middle = errors[len(errors) // 2] if errors else None
    return (
        Figure("Collectives", number(row.num_collectives), f"fitted by {found.method}"),
        Figure("Ops", number(row.num_ops), "timed"),
        Figure("Median error", share(middle), "of the fits, relative to medians"),
        Figure("Largest error", share(worst), "of any point"),
        _run(row, found),
        Figure("Trials", number(row.num_trials), "used for this version"),
    )


def _run(row: CalibrationRow, found: Calibration) -> Figure:
    """How the run ended, and whether its fits explain what was measured."""
    bad = [name_of(fit) for fit in found.collectives if fit.r2 < 0]
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        note = f"R² below 0 for {bad[0]}{more}: a constant would predict better. Measure again on an idle cluster."
        return Figure("Run", "poor fit" if row.complete else "ended early, poor fit", note, tone="bad")
    if row.complete:
        return Figure("Run", "complete", f"over {found.backend}", tone="good")
    return Figure("Run", "ended early", f"over {found.backend}", tone="warn")


def _chart(fit: CollectiveFit, at: int) -> Chart:
    unit = time_unit([point.median_s for point in fit.points])
    data = {
        "points": [
            {
                "bytes": point.num_bytes,
                "median": point.median_s,
                "low": _quartiles(point)[0],
                "high": _quartiles(point)[1],
                "outlier": point.num_bytes in fit.outliers,
            }
            for point in fit.points
        ],
        "line": _line(fit),
    }
    rows = tuple(
        (
            number(point.num_bytes),
            unit.of(point.median_s),
            unit.of(point.iqr_s),
            unit.of(predicted := predict(fit, point.num_bytes)),
            share((predicted - point.median_s) / point.median_s),
            number(point.num_repeats),
        )
        for point in fit.points
    )
    columns = ("Bytes", f"Median ({unit.name})", f"Spread ({unit.name})", f"Fit ({unit.name})", "Error", "Repeats")
    spoken = f"alpha {seconds(fit.alpha_s)}, {_bandwidth(fit)}, R² {fit.r2:.4f}, median error "
    spoken += share(fit.median_relative_error)
    return Chart(f"fit-{at}", "fit", name_of(fit), spoken, data, Table(columns, rows, 0))


def predict(fit: CollectiveFit, num_bytes: float) -> float:
    """Predicted seconds of a message under the fit, as in the cost model."""
    return float(fitted_s(fit, np.array([num_bytes], dtype=np.float64))[0])


def _quartiles(point: Point) -> tuple[float, float]:
    if point.spread is not None:
        return point.spread.quantiles_s[_LOW], point.spread.quantiles_s[_HIGH]
    half = point.iqr_s / 2
    return max(point.median_s - half, point.median_s * 1e-3), point.median_s + half


def _line(fit: CollectiveFit) -> list[list[float]]:
    sizes = [point.num_bytes for point in fit.points]
    if not sizes:
        return []
    low, high = min(sizes), max(sizes)
    ratio = (high / low) ** (1 / _LINE_POINTS) if high > low else 1.0
    drawn = ([size, predict(fit, size)] for size in (low * ratio**at for at in range(_LINE_POINTS + 1)))
    return [point for point in drawn if point[1] > 0]


def _bandwidth(fit: CollectiveFit) -> str:
    return rate(1 / fit.beta_s_per_byte) if fit.beta_s_per_byte > 0 else "no bandwidth"


def _fits(fits: tuple[CollectiveFit, ...]) -> Table:
    unit = time_unit([fit.alpha_s for fit in fits])
    rows = tuple(
        (
            name_of(fit),
            unit.of(fit.alpha_s),
            _bandwidth(fit),
            f"{fit.r2:.4f}",
            share(fit.median_relative_error),
            share(fit.max_relative_error),
            number(len(fit.points)),
            number(len(fit.outliers)),
            ", ".join(fit.shared_with).replace("_", "-") or "-",
        )
        for fit in fits
    )
    columns = (
        "Collective",
        f"alpha ({unit.name})",
        "1 / beta",
        "R²",
        "Median error",
        "Largest error",
        "Points",
        "Outliers",
        "Shares fit with",
    )
    return Table(columns, rows)


def _ops(found: Calibration, most: int) -> Table:
    largest = sorted(found.ops.items(), key=lambda item: -(item[1].forward_s + item[1].backward_s))[:most]
    unit = time_unit([time.forward_s for _, time in largest])
    rows = tuple((op_words(key), unit.of(time.forward_s), unit.of(time.backward_s)) for key, time in largest)
    return Table(("Op", f"Forward ({unit.name})", f"Backward ({unit.name})"), rows)


def _corrections(found: Calibration) -> Table | None:
    if not found.corrections:
        return None
    rows = tuple(
        (number(one.num_trials), f"{one.compute:.3f}", f"{one.network:.3f}", seconds(one.waiting_s))
        for one in found.corrections
    )
    return Table(("After trials", "Op times ×", "Collective times ×", "Added idle time"), rows, 0)


def _facts(row: CalibrationRow, found: Calibration) -> tuple[Fact, ...]:
    facts = [Fact("Cluster", found.cluster.name, f"/clusters/{row.cluster_id}")]
    if row.root_id != row.id:
        facts.append(Fact("Corrected version of", short(row.root_id), f"/calibrations/{row.root_id}"))
    if row.newest_id != row.id:
        facts.append(Fact("Newest version", short(row.newest_id), f"/calibrations/{row.newest_id}"))
    if row.job_id:
        facts.append(Fact("Measured by", short(row.job_id), f"/jobs/{row.job_id}"))
    return tuple(facts)
