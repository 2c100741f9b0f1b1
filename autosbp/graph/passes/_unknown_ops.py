"""Ops of torch that graphs may not name: an error that says where the model calls one, and what to call instead."""

from __future__ import annotations

import re
from collections.abc import Mapping

from autosbp.errors import UnsupportedError
from autosbp.graph.allowed_ops import ALLOWED_OPS
from autosbp.graph.ir import LogicalGraph

_HINTS: Mapping[str, str] = {
    r"segment_reduce": "with segments of equal length reshape and reduce a dim; with others use index_add or scatter_reduce",
    r"as_strided": "it reads memory whatever its shape; use unfold, slices or gather",
    r"ctc_loss": "compute the loss with reduction='none' on log probabilities in an op of your own (torch.library)",
    r"embedding_bag": (
        "give it a matrix of indices, [batch, length], with padding_idx or per_sample_weights of 0 where a bag is shorter, "
        "and leave out scale_grad_by_freq"
    ),
    r"complex|fft": "compute with real and imaginary parts as two real tensors",
    r"sparse|to_dense|coalesce|csr|nested": "use dense tensors with masks",
    r"quantize|fake_quant": "fake quantization is round, clamp and a straight-through torch.autograd.Function",
    r"nonzero|masked_select|unique|bincount": "its size depends on values; use masks, one-hot or top-k of fixed k",
    r"empty": "uninitialised memory has no value; use zeros",
    r"_like$|normal|exponential|geometric|cauchy|uniform|poisson|binomial|gamma|dirichlet": (
        "draw it outside of the model and give it as an input, or use rand, randn, bernoulli or dropout"
    ),
}
_DEFAULT = "compute it with other ops of torch, or register it as an op of your own with torch.library"


def refuse_unknown_ops(graph: LogicalGraph, lines: Mapping[str, str]) -> None:
    """Raise ``UnsupportedError`` for the first op of torch that a graph may not name; ``lines`` has each node's line."""
    for node in graph.nodes:
        if node.op.startswith("aten.") and node.op not in ALLOWED_OPS:
            hint = next((advice for pattern, advice in _HINTS.items() if re.search(pattern, node.op)), _DEFAULT)
            raise UnsupportedError(f"{node.op} cannot be captured{lines.get(node.name, '')}; {hint}")
