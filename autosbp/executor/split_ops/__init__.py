"""Split implementations: programs of local ops and collectives that replace an op whose whole dim is split.

``costmodel.split_ops.INTERNAL`` states what each communicates; the two must agree, and tests compare them.
"""

from __future__ import annotations

from collections.abc import Mapping

from autosbp.executor.split_ops import _attention, _embedding, _extrema, _norms, _softmax
from autosbp.executor.split_ops._base import Implementation, SplitCall

IMPLEMENTATIONS: Mapping[str, Implementation] = {
    "aten.scaled_dot_product_attention.default": _attention.attention,
    "aten.embedding.default": _embedding.embedding,
    "aten.gather.default": _embedding.gather,
    "aten.scatter_add.default": _embedding.scatter_add,
    "autosbp.experts.default": _embedding.experts,
    "aten.amax.default": _extrema.extremum,
    "aten.amin.default": _extrema.extremum,
    "aten.max.default": _extrema.extremum,
    "aten.min.default": _extrema.extremum,
    "aten.max.dim": _extrema.indexed_extremum,
    "aten.min.dim": _extrema.indexed_extremum,
    "aten.logsumexp.default": _softmax.logsumexp,
    "aten.layer_norm.default": _norms.layer_norm,
    "aten.rms_norm.default": _norms.rms_norm,
    "aten.group_norm.default": _norms.group_norm,
    "aten.batch_norm.default": _norms.batch_norm,
    "aten.softmax.int": _softmax.softmax,
    "aten.log_softmax.int": _softmax.log_softmax,
}

__all__ = ["IMPLEMENTATIONS", "Implementation", "SplitCall"]
