"""What a step of an optimizer moves."""

from __future__ import annotations

import pytest

from autosbp.costmodel.optimizer import moved_bytes, step_bytes
from autosbp.graph.cast import cast_floats
from autosbp.zoo import zoo_graph


@pytest.mark.parametrize(
    ("width", "optimizer", "expected"),
    [
        (4, "adamw", 7 * 4),
        (8, "adamw", 7 * 8),
        (2, "adamw", (2 + 4) + 7 * 4 + (4 + 2)),  # the gradient to float32, the step on float32, the parameter back
        (4, "sgd", 3 * 4),
        (2, "sgd", (2 + 4) + 3 * 4 + (4 + 2)),
    ],
)
def test_short_parameters_are_copied_to_float32_and_back(width: int, optimizer: str, expected: int) -> None:
    assert step_bytes(width, optimizer) == expected


def test_all_parameters_of_a_model() -> None:
    graph = zoo_graph("mlp-small")
    count = sum(leaf.meta.num_bytes for leaf in graph.trained) / 4
    assert moved_bytes(graph.trained, "adamw").sum() == 28 * count
    assert moved_bytes(cast_floats(graph, "float32", "bfloat16").trained, "adamw").sum() == 40 * count
