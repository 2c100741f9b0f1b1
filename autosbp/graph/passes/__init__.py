"""Import passes: each turns a graph into an equal one in canonical form. ``PASSES`` is their order."""

from __future__ import annotations

from collections.abc import Callable

from autosbp.graph.ir import LogicalGraph
from autosbp.graph.passes._aliases import one_spelling
from autosbp.graph.passes._cleanup import drop_dead, drop_no_ops, rename
from autosbp.graph.passes._constants import fold_constants, share_constants
from autosbp.graph.passes._creation import plain_creation
from autosbp.graph.passes._fuse import fuse_gelu
from autosbp.graph.passes._index import constant_indices_to_slices
from autosbp.graph.passes._linear import view_addmm_to_linear
from autosbp.graph.passes._losses import explicit_cross_entropy
from autosbp.graph.passes._means import explicit_means
from autosbp.graph.passes._regressions import explicit_loss_means
from autosbp.graph.passes._unfuse import unfuse_split_linears
from autosbp.graph.passes._views import canonical_views

PASSES: tuple[Callable[[LogicalGraph], LogicalGraph], ...] = (
    drop_dead,
    plain_creation,
    one_spelling,
    canonical_views,
    drop_no_ops,
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
    rename,
)


def canonicalise(graph: LogicalGraph) -> LogicalGraph:
    """Run every pass, in order."""
    for step in PASSES:
        graph = step(graph)
    return graph
