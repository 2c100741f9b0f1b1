"""Baselines as restricted search problems: what users would choose without a search (DESIGN section 8).

``data_parallel`` splits only the batch. ``megatron`` is the best grid of data x tensor parallel axes, the same for every
layer: data axes split only the batch, tensor axes never do, and an op with parameters either splits them or repeats its
work. The choice of column, row, head and vocabulary splits inside a grid is the optimum, so it is at least as good as the
published recipe (Shoeybi et al. 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Callable

from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.search._clusters import OpCluster

AxisRule = Callable[[OpCluster, int], bool]
"""Whether a cluster may take an option on an axis of one role."""


class Roles:
    """Which options split the batch, and which leave parameters whole. ``graph`` still has its symbols."""

    def __init__(self, graph: LogicalGraph) -> None:
        self.graph = graph
        self._batch = {
            Ref(name, index): frozenset(dim for dim, size in enumerate(meta.shape) if isinstance(size, str))
            for name, metas in graph.metas.items()
            for index, meta in enumerate(metas)
        }

    def splits_batch(self, cluster: OpCluster, option: int) -> bool:
        for at, node in enumerate(cluster.nodes):
            chosen = cluster.options[option][at]
            for ref, sbp in zip(node.refs(), chosen.ins, strict=True):
                if sbp.is_split and sbp.dim in self._batch[ref]:
                    return True
            for index, sbp in enumerate(chosen.outs):
                if sbp.is_split and sbp.dim in self._batch[Ref(node.name, index)]:
                    return True
        return False

    def data_axis(self, cluster: OpCluster, option: int) -> bool:
        """Data parallel: split the batch; where there is none, repeat the work with partial gradients."""
        if any(self.splits_batch(cluster, other) for other in range(len(cluster.options))):
            return self.splits_batch(cluster, option)
        return cluster.options[option][0].factor == "B"

    def tensor_axis(self, cluster: OpCluster, option: int) -> bool:
        """Tensor parallel: anything but the batch, and no split that leaves an op's parameters whole. An op that is not
        split is repeated with whole gradients (I), as Megatron repeats norms."""
        if self.splits_batch(cluster, option):
            return False
        for at, node in enumerate(cluster.nodes):
            chosen = cluster.options[option][at]
            owned = [
                sbp for ref, sbp in zip(node.refs(), chosen.ins, strict=True) if ref.name in self.graph.parameter_names
            ]
            if owned and not any(sbp.is_split for sbp in owned) and chosen.factor != "I":
                return False
        return True
