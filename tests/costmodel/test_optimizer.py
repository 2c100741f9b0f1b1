"""What a step of an optimizer moves."""

from __future__ import annotations

import pytest

from autosbp.costmodel.optimizer import moved_bytes, step_bytes
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph.ir import ParameterMeta, TensorMeta
from autosbp.zoo import zoo_graph


@pytest.mark.parametrize(
    ("meta", "optimizer", "expected"),
    [
        (TensorMeta((), "float32"), "adamw", 7 * 4),
        (TensorMeta((), "float64"), "adamw", 7 * 8),
        # the gradient to float32, the step on float32, the parameter back
        (TensorMeta((), "float16"), "adamw", (2 + 4) + 7 * 4 + (4 + 2)),
        (ParameterMeta((), "bfloat16", "float32", "float32"), "adamw", 7 * 4 + (4 + 2)),
        (ParameterMeta((), "bfloat16", "bfloat16", "bfloat16"), "adamw", 7 * 2),
        (TensorMeta((), "float32"), "sgd", 3 * 4),
        (TensorMeta((), "bfloat16"), "sgd", (2 + 4) + 3 * 4 + (4 + 2)),
    ],
)
def test_half_precision_parameters_are_copied_to_the_optimizer_s_dtype_and_back(
    meta: TensorMeta, optimizer: str, expected: int
) -> None:
    assert step_bytes(meta, optimizer) == expected


def test_all_parameters_of_a_model() -> None:
    graph = zoo_graph("mlp-small")
    count = sum(leaf.meta.num_bytes for leaf in graph.trained) / 4
    assert moved_bytes(graph.trained, "adamw").sum() == 28 * count
    assert moved_bytes(cast_floats(graph, "float32", "bfloat16").trained, "adamw").sum() == 40 * count
