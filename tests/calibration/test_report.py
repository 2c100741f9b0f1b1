from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from autosbp.calibration import fit_collective, report_html
from autosbp.cli import app
from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import Calibration, CollectiveFit, Point
from autosbp.costmodel.network import NetworkModel, fitted_s

CLUSTER = load_cluster("local:2x2")
NAME = "</script><b>cluster & co"


def points(alpha_s: float, betas: tuple[float, float], knot: int) -> tuple[Point, ...]:
    """Exact times of a line with one knot, and one size that took four times as long."""
    sizes = [1024 * 4**power for power in range(10)]
    times = [alpha_s + min(size, knot) * betas[0] + max(size - knot, 0) * betas[1] for size in sizes]
    times[5] *= 4
    return tuple(Point(size, time, time / 10, 30) for size, time in zip(sizes, times, strict=True))


@pytest.fixture(scope="module")
def fit() -> CollectiveFit:
    return fit_collective("p2p", (2, 1), points(1e-4, (1e-9, 8e-9), 2**18))


@pytest.fixture(scope="module")
def calibration(fit: CollectiveFit) -> Calibration:
    return Calibration(CLUSTER, "gloo", "relative", (fit,), notes=(NAME,))


class Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.script = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"]:
            self.script += data


def test_the_page_needs_no_other_file_and_holds_the_calibration(calibration: Calibration) -> None:
    page = report_html(calibration)
    checker = Checker()
    checker.feed(page)
    assert checker.links == [] and "http" not in page and "url(" not in page
    assert Calibration.from_dict(json.loads(checker.script)) == calibration
    assert checker.tags.count("svg") == 2 and checker.tags.count("b") == 0


def test_outliers_knots_and_intervals_are_shown(calibration: Calibration, fit: CollectiveFit) -> None:
    assert fit.knots and fit.outliers and fit.alpha_interval_s
    page = report_html(calibration)
    assert page.count('class="outlier"') == 2 * len(fit.outliers)
    assert page.count('class="knot"') == len(fit.knots)
    assert f"{1 / fit.beta_s_per_byte / 1e9:.4g} GB/s" in page and f"{fit.r2:.4f}" in page


def test_shapes_that_were_not_measured_are_listed_as_predicted(calibration: Calibration) -> None:
    page = report_html(calibration)
    predicted = page[page.index("not measured") : page.index("Measured points")]
    rows = re.findall(r"<td>(\w+)</td><td>([\dx]+)</td>", predicted)
    assert ("p2p", "2x1") not in rows
    assert {("p2p", "1x2"), ("all_reduce", "2x1"), ("all_to_all", "2x2")} <= set(rows)


def test_the_curve_is_what_plans_are_charged(calibration: Calibration, fit: CollectiveFit) -> None:
    sizes = [1000.0, 2.0**18, 1e8]
    network = NetworkModel(CLUSTER, calibration)
    assert list(fitted_s(fit, np.array(sizes))) == [network.time_s("p2p", size, (2, 1)) for size in sizes]


def test_explain_of_a_calibration_prints_its_fits_and_writes_the_page(calibration: Calibration, tmp_path: Path) -> None:
    (tmp_path / "calib.json").write_text(json.dumps(calibration.to_dict()))
    arguments = ["explain", str(tmp_path / "calib.json"), "--report", str(tmp_path / "calib.html")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert calibration.calibration_id in result.output
    assert (tmp_path / "calib.html").read_text() == report_html(calibration)
