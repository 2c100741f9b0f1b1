"""Self-contained HTML page of a calibration: measured points and fits, and what is only predicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from autosbp.calibration._placements import placements
from autosbp.calibration._plots import bytes_text, residual_plot, seconds_text, time_plot
from autosbp.costmodel.calibration import BETA_FLOOR_S_PER_BYTE, KINDS, Calibration, CollectiveFit
from autosbp.costmodel.network import NetworkModel
from autosbp.utils.json_io import canonical

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1180px; padding: 0 1em; color: #1a1a1a; }
table { border-collapse: collapse; margin: 1em 0; display: block; overflow-x: auto; }
th, td { padding: 3px 10px; text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid #888; } tr:nth-child(even) td { background: #f5f5f5; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
.fits { display: flex; flex-wrap: wrap; gap: 20px; }
figure { margin: 0; } figcaption { font-weight: 600; } figcaption small { font-weight: 400; color: #555; display: block; }
svg { display: block; overflow: visible; } svg text { font: 10px system-ui, sans-serif; fill: #444; }
svg .x { text-anchor: middle; }
svg .y { text-anchor: end; } .frame { fill: none; stroke: #bbb; } .grid { stroke: #e6e6e6; }
.fit { fill: none; stroke: #c2410c; stroke-width: 1.5; } .point { fill: #1d4ed8; } .spread { stroke: #1d4ed8; }
.outlier { fill: #fff; stroke: #b91c1c; stroke-width: 2; } .knot { stroke: #777; stroke-dasharray: 4 3; }
"""
_MEASURED = (
    "collective", "group", "alpha", "95 % interval", "1 / beta", "95 % interval", "R2", "median error", "largest error",
    "knots", "outliers", "shared with",
)  # fmt: skip


def report_html(calibration: Calibration) -> str:
    """Render the page. Errors are relative, of the fit against medians; intervals are of alpha and of the first beta."""
    cluster = calibration.cluster
    facts = [
        f"{calibration.calibration_id}, over {calibration.backend}, fitted by {calibration.method}",
        f"{cluster.num_devices} devices: " + " x ".join(f"{level.count} {level.name}" for level in cluster.levels),
        *(() if calibration.complete else ("incomplete: the run ended early",)),
        *calibration.notes,
    ]
    predicted = list(_predicted(calibration))
    document = canonical({**calibration.to_dict(), "calibration_id": calibration.calibration_id}).decode()
    document = document.replace("</", "<\\u002f")  # safe inside a script element
    return "".join((
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(cluster.name)}: calibration</title>',
        f"<style>{_STYLE}</style><h1>Calibration of {escape(cluster.name)}</h1>",
        "<ul>", *(f"<li>{escape(fact)}</li>" for fact in facts), "</ul>",
        "<h2>Fits</h2>", _table(_MEASURED, map(_row, calibration.collectives)),
        "<h2>Predicted from the levels, not measured</h2>",
        _table(("collective", "group", "alpha", "1 / beta", "from"), predicted) if predicted else "<p>None.</p>",
        "<h2>Measured points and fit</h2>",
        "<p>Points are medians, bars interquartile ranges, hollow points outliers, dashed lines knots.</p>",
        '<div class="fits">', *map(_figure, calibration.collectives), "</div>",
        f'<script type="application/json" id="calibration">{document}</script></html>\n',
    ))  # fmt: skip


def _row(fit: CollectiveFit) -> Sequence[str]:
    alpha, beta = fit.alpha_interval_s, fit.beta_interval_s_per_byte
    return (
        fit.kind,
        _group(fit),
        _signed(fit.alpha_s),
        "-" if alpha is None else f"{_signed(alpha[0])} to {_signed(alpha[1])}",
        _rate(fit.beta_s_per_byte),
        "-" if beta is None else f"{_rate(beta[1])} to {_rate(beta[0])}",
        f"{fit.r2:.4f}",
        f"{100 * fit.median_relative_error:.1f} %",
        f"{100 * fit.max_relative_error:.1f} %",
        "; ".join(f"{_rate(slope)} from {bytes_text(size)}" for size, slope in fit.knots) or "-",
        ", ".join(map(bytes_text, fit.outliers)) or "-",
        ", ".join(fit.shared_with) or "-",
    )


def _predicted(calibration: Calibration) -> Iterable[Sequence[str]]:
    """Group shapes of the cluster's mesh that have no fit, with the network model's prediction."""
    network = NetworkModel(calibration.cluster, calibration)
    shapes = dict.fromkeys(place.group_shape for place in placements(calibration.cluster.mesh(), False))
    for shape in shapes:
        for kind in KINDS:
            found = network.alpha_beta(kind, shape)
            if not found.measured:
                source = "the cluster's description"
                if found.based_on is not None:
                    source = f"{found.based_on[0]} over {'x'.join(map(str, found.based_on[1]))}"
                yield kind, "x".join(map(str, shape)), _signed(found.alpha_s), _rate(found.beta_s_per_byte), source


def _figure(fit: CollectiveFit) -> str:
    caption = f"{fit.kind} over {_group(fit)}"
    numbers = f"alpha {_signed(fit.alpha_s)}, {_rate(fit.beta_s_per_byte)}, R2 {fit.r2:.4f}"
    plots = time_plot(fit) + residual_plot(fit) if fit.points else "<p>no points</p>"
    return f"<figure><figcaption>{escape(caption)}<small>{escape(numbers)}</small></figcaption>{plots}</figure>"


def _group(fit: CollectiveFit) -> str:
    shape = "x".join(map(str, fit.group_shape))
    alone = None if fit.num_groups is None else f"{fit.num_groups} at once"
    return " ".join([shape, *filter(None, [fit.placement, alone])])


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _signed(value: float) -> str:
    return "0 s" if value == 0 else f"-{seconds_text(-value)}" if value < 0 else seconds_text(value)


def _rate(beta: float) -> str:
    """Format a bandwidth; ``-`` if the time does not grow with message size."""
    return f"{1 / beta / 1e9:.4g} GB/s" if beta > BETA_FLOOR_S_PER_BYTE else "-"
