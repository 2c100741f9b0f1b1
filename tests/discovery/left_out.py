"""Layouts that discovery finds and a rule leaves out on purpose, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping

_PARAMETERS = "parameters are never stored as partial sums, so an op that is linear in its weights gains nothing by it"
_SCORES = "every device would repeat the scores, which are most of the work; heads, queries and keys divide all of it"
_COPIES = "a copy that is then sliced costs as little, and needs no argument rewritten"
_INDEX = "models add by index_add and scatter_add, whose rules divide the index"

LEFT_OUT: Mapping[str, tuple[str, frozenset[str]]] = {
    "aten.conv2d.default": (
        "windows of one element: the convolutions around them have wider ones, and each layout costs search time",
        frozenset(("S2 B B -> S2", "S3 B B -> S3")),
    ),
    "aten.scaled_dot_product_attention.default": (
        _SCORES,
        frozenset(("B B P -> P", "B B P B -> P", "B B S2 -> S2", "B B S3 -> S3", "B B S3 B -> S3")),
    ),
    "aten.layer_norm.default": (_PARAMETERS, frozenset(("B P -> P", "B P P -> P"))),
    "aten.rms_norm.default": (_PARAMETERS, frozenset(("B P -> P",))),
    "aten.group_norm.default": (_PARAMETERS, frozenset(("B P -> P", "B P P -> P"))),
    "aten.batch_norm.default": (_PARAMETERS, frozenset(("B P P -> P", "B P P B B -> P", "P B P P B -> P"))),
    "aten.expand.default": (_COPIES, frozenset(("B -> S0", "B -> S1"))),
    "aten.nan_to_num.default": ("the op is there for numbers that are not finite, of which no sum is right",
                                frozenset(("P -> P",))),
    "aten.binary_cross_entropy_with_logits.default": (
        "the weights of classes are data, which nothing makes as partial sums", frozenset(("B B P -> P",))
    ),
    "autosbp.experts.default": (
        "a token has few slots, and weights are never stored as partial sums",
        frozenset(("B B B B P B -> P", "B S1 S1 B B B -> P")),
    ),
    "aten.index_put.default": (_INDEX, frozenset(("P B P -> P", "P S0 S1 -> P", "S1 B S0 -> S1"))),
    "aten.scatter_reduce.two": (_INDEX, frozenset(("P B P -> P", "P S1 S1 -> P"))),
    "aten.slice_scatter.default": ("models scatter into ranges, not into one element of each so many",
                                   frozenset(("S0 S0 -> S0",))),
}  # fmt: skip
