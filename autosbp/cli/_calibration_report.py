"""Print a calibration or write it as an HTML page, for ``calibrate`` and ``explain``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autosbp.cli._exit_codes import console, note, print_json
from autosbp.cli._files import write_text
from autosbp.cli._learn import describe
from autosbp.cli._text_tables import table
from autosbp.utils.formatting import num_bytes, percent, seconds

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration, CollectiveFit

Report = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="FILE.html", help="Write an HTML page with measured points and fits.", show_default=False
    ),
]


def show_calibration(found: Calibration, report: Path | None, as_json: bool) -> None:
    """Print a calibration and, with ``report``, write its HTML page."""
    if report is not None:
        from autosbp.calibration import report_html

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
    """List collectives that share a fit, and points that the fits treat as outliers."""
    shared = dict.fromkeys(
        (fit.group_shape, fit.num_groups, tuple(sorted([_kind(fit), *fit.shared_with])))
        for fit in found.collectives
        if fit.shared_with
    )
    said = [
        f"{'x'.join(map(str, shape))}{'' if groups is None else ' alone'} share one fit (no significant "
        f"difference): {', '.join(names)}"
        for shape, groups, names in shared
    ]
    outliers = [(fit, ", ".join(map(num_bytes, fit.outliers))) for fit in found.collectives if fit.outliers]
    return said + [f"outliers of {fit.kind} over {_group(fit)}: {sizes}" for fit, sizes in outliers]


def _kind(fit: CollectiveFit) -> str:
    return " ".join(filter(None, [fit.kind, fit.placement]))


def _rate(beta_s_per_byte: float) -> str:
    """Format a bandwidth; ``-`` if the time does not grow with message size."""
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
        out.print(f"{len(found.corrections)} in total, the last one is in effect; undo it with autosbp learn --undo")
    for line in found.notes:
        out.print(f"note: {line}")
