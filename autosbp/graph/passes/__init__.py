"""Import passes: each turns a graph into an equivalent one in canonical form. ``PASSES`` is their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autosbp.graph.ir import LogicalGraph
from autosbp.graph.passes._batch_index import batch_indices_to_gather
from autosbp.graph.passes._cleanup import drop_dead, drop_no_ops, rename
from autosbp.graph.passes._constants import fold_constants, share_constants
from autosbp.graph.passes._creation import canonicalize_creation
from autosbp.graph.passes._elementwise_losses import explicit_loss_means
from autosbp.graph.passes._embedding_bag import explicit_embedding_bags
from autosbp.graph.passes._fuse import fuse_gelu
from autosbp.graph.passes._index import constant_indices_to_slices
from autosbp.graph.passes._linear import view_addmm_to_linear
from autosbp.graph.passes._losses import explicit_cross_entropy
from autosbp.graph.passes._means import explicit_means
from autosbp.graph.passes._op_aliases import canonicalize_aliases
from autosbp.graph.passes._unfuse import unfuse_split_linears
from autosbp.graph.passes._unknown_ops import refuse_unknown_ops
from autosbp.graph.passes._views import canonical_views

PASSES: tuple[Callable[[LogicalGraph], LogicalGraph], ...] = (
    drop_dead,
    canonicalize_creation,
    explicit_embedding_bags,
    canonicalize_aliases,
    canonical_views,
    drop_no_ops,
    batch_indices_to_gather,
    share_constants,
    fold_constants,
    constant_indices_to_slices,
    drop_dead,
    view_addmm_to_linear,
    drop_no_ops,
    unfuse_split_linears,
    fuse_gelu,
    explicit_cross_entropy,
    explicit_loss_means,
    explicit_means,
    drop_no_ops,
    drop_dead,
)


def canonicalise(graph: LogicalGraph, lines: Mapping[str, str] | None = None) -> LogicalGraph:
    """Run every pass, in order, and assign canonical names.

    Args:
        lines: where the user's code calls each op that graphs may not name, by node.

    Raises:
        UnsupportedError: for such an op that the passes have not replaced.
    """
    for step in PASSES:
        graph = step(graph)
    refuse_unknown_ops(graph, lines or {})
    return rename(graph)
