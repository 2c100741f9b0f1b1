"""A calibration as it is printed, and as a page: what ``calibrate`` and ``explain`` end with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autosbp.cli._files import write_text
from autosbp.cli._format import table
from autosbp.cli._learn import describe
from autosbp.cli._run import console, note, print_json
from autosbp.units import num_bytes, percent, seconds

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration, CollectiveFit

Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", help="Points against the fits, as one page.", show_default=False),
]


def show_calibration(found: Calibration, report: Path | None, as_json: bool) -> None:
    """Print a calibration, and write its page where one is asked for."""
    if report is not None:
        from calibration import report_html

        write_text(report, report_html(found))
        note(f"wrote {report}")
    if as_json:
        print_json({**found.to_dict(), "calibration_id": found.calibration_id})
    else:
        _show(found)


def _group(fit: CollectiveFit) -> str:
    shape = "x".join(map(str, fit.group_shape))
    return " ".join([shape, *filter(None, [fit.placement, "alone" if fit.num_groups == 1 else None])])


def _remarks(found: Calibration) -> list[str]:
    """Collectives that share a fit, and points that the fits give little weight."""
    shared = dict.fromkeys(
        (fit.group_shape, fit.num_groups, tuple(sorted([_kind(fit), *fit.shared_with])))
        for fit in found.collectives
        if fit.shared_with
    )
    said = [
        f"one fit over {'x'.join(map(str, shape))}{'' if groups is None else ' alone'}, as no difference shows: "
        f"{', '.join(names)}"
        for shape, groups, names in shared
    ]
    outliers = [(fit, ", ".join(map(num_bytes, fit.outliers))) for fit in found.collectives if fit.outliers]
    return said + [f"outliers of {fit.kind} over {_group(fit)}: {sizes}" for fit, sizes in outliers]


def _kind(fit: CollectiveFit) -> str:
    return " ".join(filter(None, [fit.kind, fit.placement]))


def _rate(beta_s_per_byte: float) -> str:
    """Bandwidth; times that do not grow with size show none."""
    from autosbp.costmodel.calibration import BETA_FLOOR_S_PER_BYTE

    return f"{1 / beta_s_per_byte / 1e9:.4g} GB/s" if beta_s_per_byte > BETA_FLOOR_S_PER_BYTE else "-"


def _show(found: Calibration) -> None:
    out = console()
    rows = [
        (
            fit.kind,
            _group(fit),
            seconds(fit.alpha_s),
            _rate(fit.beta_s_per_byte),
            f"{fit.r2:.4f}",
            percent(fit.median_relative_error, 1.0),
        )
        for fit in found.collectives
    ]
    title = f"{found.calibration_id} of {found.cluster.name} over {found.backend}"
    out.print(table(title, ("collective", "group", "alpha", "1 / beta", "R2", "median error"), rows, 2))
    for line in _remarks(found):
        out.print(line)
    out.print(f"{len(found.ops)} op times" + ("" if found.complete else "; incomplete"))
    if found.corrections:
        out.print(describe(found.correction))
        out.print(f"{len(found.corrections)} in all, the last is in effect; autosbp learn --undo takes it back")
    for line in found.notes:
        out.print(f"note: {line}")
