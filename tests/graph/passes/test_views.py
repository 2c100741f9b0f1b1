"""Shape ops in their canonical forms."""

from __future__ import annotations

from typing import Any

import pytest

from autosbp.errors import UnsupportedError
from autosbp.graph.passes._views import canonical_views
from tests.graph.passes.harness import LINEAR, Shape, W, X, check, graph_of, node


@pytest.mark.parametrize(
    ("op", "args", "shape", "canonical"),
    [
        ("view.default", ((-1, 18),), ("batch", 18), "reshape.default"),
        ("flatten.using_ints", (1, 2), ("batch", 18), "reshape.default"),
        ("unsqueeze.default", (1,), ("batch", 1, 3, 6), "reshape.default"),
        ("transpose.int", (1, -1), ("batch", 6, 3), "permute.default"),
        ("permute.default", ((0, -1, 1),), ("batch", 6, 3), "permute.default"),
        ("_to_copy.default", (), ("batch", 3, 6), "to.dtype"),
        ("pad.default", ((1, 0),), ("batch", 3, 7), "constant_pad_nd.default"),
        ("slice.Tensor", (2, None, 2**63 - 1), ("batch", 3, 6), "slice.Tensor"),
    ],
)
def test_views_take_their_canonical_form(op: str, args: tuple[Any, ...], shape: Shape, canonical: str) -> None:
    graph = graph_of([LINEAR, node("view", op, "@y", *args, shape=shape)], W, X)
    check(graph, canonical_views, ["linear.default", canonical, "sum.default"])


def test_a_split_becomes_slices_that_later_views_can_read() -> None:
    split = node("parts", "split.Tensor", "@y", 2, -1, shape=[("batch", 3, 2)] * 3)
    turned = node("turned", "transpose.int", "@parts:1", 1, 2, shape=("batch", 2, 3))
    graph = graph_of([LINEAR, split, turned], W, X)
    check(graph, canonical_views, ["linear.default", *["slice.Tensor"] * 3, "permute.default", "sum.default"])


def test_a_split_along_the_batch_is_refused() -> None:
    split = node("parts", "chunk.default", "@y", 2, 0, shape=[("batch", 3, 6)] * 2)
    with pytest.raises(UnsupportedError, match="batch"):
        canonical_views(graph_of([LINEAR, split, node("z", "neg.default", "@parts:1", shape=("batch", 3, 6))], W, X))
