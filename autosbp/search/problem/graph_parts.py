"""Parts that search problems of one graph share, for any batch size and cluster."""

from __future__ import annotations

from functools import cached_property

from autosbp.costmodel.folded_graph import FoldedGraph, fold
from autosbp.costmodel.recompute import recomputable_blocks
from autosbp.graph.ir import LogicalGraph
from autosbp.search.problem.expand_repeats import Shapes
from autosbp.search.problem.graph_analysis import GraphAnalysis
from autosbp.search.problem.overlap_zones import OverlapZones, find_zones

MAX_SIZES = 24
"""Microbatch sizes cached at once; the searches of one batch size need about half as many."""


class GraphParts:
    """A graph bound at microbatch sizes, folded and analysed.

    Args:
        pinned: ops and parameters with a fixed layout, see ``GraphAnalysis``.
        stored: parameters with a fixed stored layout, see ``GraphAnalysis``.
        counts: numbers of devices over which dims may be split.
        folds: whether to leave out repeated blocks where possible.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        pinned: frozenset[str],
        stored: frozenset[str],
        counts: frozenset[int],
        *,
        folds: bool,
    ) -> None:
        self.counts = counts
        self.graph, self._pinned, self._stored, self._folds = graph, pinned, stored, folds
        self.shapes: Shapes = {}
        self._bound: dict[int, LogicalGraph] = {}
        self._folded: dict[int, LogicalGraph] = {}
        self._analyses: dict[tuple[int, bool], GraphAnalysis] = {}

    @cached_property
    def folding(self) -> FoldedGraph | None:
        return fold(self.graph) if self._folds else None

    @cached_property
    def blocks(self) -> tuple[tuple[str, ...], ...]:
        """Ops of each block that may be checkpointed."""
        if self.folding is not None:
            return tuple(block[: self.folding.num_ops] for block in self.folding.blocks)
        return recomputable_blocks(self.graph.bound_at_capture)

    @cached_property
    def starts(self) -> frozenset[str] | None:
        """Ops that a stage may begin with: the first of each repeated block, and the first after all blocks; None means any."""
        if self.folding is None:
            return None
        blocks = self.folding.blocks
        last = blocks[-1][: self.folding.num_ops]
        behind = self.graph.positions[last[-1]] + 1
        after = [node.name for node in self.graph.nodes[behind:] if node.name in self.graph.parameter_dependent]
        return frozenset((*(block[0] for block in blocks[1:]), *after[:1]))

    @cached_property
    def zones(self) -> OverlapZones:
        """Positions of ops in a pass; those of repeated blocks are inner."""
        return find_zones(self.bound(1), frozenset(self.folding.block_of) if self.folding is not None else frozenset())

    def bound(self, micro_batch: int) -> LogicalGraph:
        """The whole graph at a microbatch size."""
        if micro_batch not in self._bound:
            self._evict(micro_batch)
            self._bound[micro_batch] = _bind(self.graph, micro_batch)
        return self._bound[micro_batch]

    def folded_graph_and_analysis(self, micro_batch: int, again: bool) -> tuple[LogicalGraph, GraphAnalysis]:
        """The graph that problems are built from (folded if possible), and its analysis; ``again`` checkpoints blocks."""
        if self.folding is None:
            bound = self.bound(micro_batch)
        else:
            if micro_batch not in self._folded:
                self._evict(micro_batch)
                self._folded[micro_batch] = _bind(self.folding.graph, micro_batch)
            bound = self._folded[micro_batch]
        key = (micro_batch, again)
        if key not in self._analyses:
            runs = {name: at for at, block in enumerate(self.blocks) for name in block} if again else None
            like = self._analyses.get((micro_batch, not again))
            self._analyses[key] = GraphAnalysis(bound, self._pinned, self._stored, runs, like, self.zones, self.counts)
        return bound, self._analyses[key]

    def _evict(self, micro_batch: int) -> None:
        """Evict the oldest sizes to make room for another."""
        sizes = dict.fromkeys((*self._bound, *self._folded))
        for old in list(sizes)[: max(0, len(sizes) + (micro_batch not in sizes) - MAX_SIZES)]:
            self._bound.pop(old, None)
            self._folded.pop(old, None)
            for again in (False, True):
                self._analyses.pop((old, again), None)


def _bind(graph: LogicalGraph, micro_batch: int) -> LogicalGraph:
    return graph.bind(**dict.fromkeys(graph.symbols, micro_batch))
