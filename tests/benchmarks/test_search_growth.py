"""``benchmarks.search_growth``: the graphs are those of the zoo with other numbers of layers, and what is timed is proved."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from autosbp.costmodel.folded_graph import fold
from autosbp.zoo import zoo_graph
from benchmarks.search_growth._chart import chart
from benchmarks.search_growth._measure import Size, exponent, one_problem
from benchmarks.search_growth._models import gpt3


def test_as_many_layers_as_captured_give_the_captured_model() -> None:
    made, captured = gpt3(96), zoo_graph("gpt3-175b")
    assert [node.op for node in made.nodes] == [node.op for node in captured.nodes]
    assert [node.outputs for node in made.nodes] == [node.outputs for node in captured.nodes]
    assert sorted(leaf.name for leaf in made.parameters) == sorted(leaf.name for leaf in captured.parameters)


@pytest.mark.parametrize("num_layers", [12, 150])
def test_every_layer_is_a_block_of_the_graph(num_layers: int) -> None:
    folding = fold(gpt3(num_layers))
    assert folding is not None
    assert folding.count in (num_layers, num_layers - 1)


def test_variables_grow_with_layers_and_distinct_products_with_their_logarithm() -> None:
    short, long = one_problem(Size(12, 8)), one_problem(Size(48, 8))
    assert 3.5 < long["variables"] / short["variables"] < 4.0
    assert long["distinct_products"] <= short["distinct_products"] + 10
    assert long["all_s"] == pytest.approx(long["fold_s"] + long["build_s"] + long["exact_s"])


def test_the_exponent_is_the_slope_between_logarithms() -> None:
    rows = [{"layers": count, "seconds": 3.0 * count**1.5} for count in (2, 7, 40)]
    assert exponent(rows, "layers", "seconds") == pytest.approx(1.5)


def test_the_chart_is_a_picture_with_a_line_for_each_timing() -> None:
    rows = [{"layers": count, "devices": count, "exact_s": 0.1, "all_s": 0.01 * count} for count in (10, 100)]
    plans = [{"layers": count, "devices": count, "plan_s": 0.2 * count} for count in (10, 20)]
    slopes = {"exact_s": 0.0, "all_s": 1.0, "plan_s": 1.0}
    drawn = chart(
        {
            "layers": rows, "devices": rows, "plans_layers": plans, "plans_devices": plans,
            "exponents": {"layers": slopes, "devices": slopes},
        }
    )  # fmt: skip
    picture = ElementTree.fromstring(drawn)  # noqa: S314  (our own text)
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}polyline"))) == 6
