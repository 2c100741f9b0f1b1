"""What search problems of one graph have in common, whatever batch and cluster they are for."""

from __future__ import annotations

from functools import cached_property

from autosbp.costmodel.folding import Folding, fold
from autosbp.costmodel.recompute import recomputable_blocks
from autosbp.graph.ir import LogicalGraph
from autosbp.search.problem.analysis import Analysis
from autosbp.search.problem.unfold import Shapes
from autosbp.search.problem.zones import Zones, find_zones

MAX_SIZES = 24
"""Microbatches that are kept at once; searches of one batch look at about half as many."""


class GraphParts:
    """A graph bound at microbatches, folded and analysed.

    Args:
        pinned: ops and parameters with a layout of their own; ``stored``: parameters with a stored one, see ``Analysis``.
        counts: numbers of devices over which dims may be split.
        folds: whether repeated blocks are left out where they can be.
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
        self._analyses: dict[tuple[int, bool], Analysis] = {}

    @cached_property
    def folding(self) -> Folding | None:
        return fold(self.graph) if self._folds else None

    @cached_property
    def blocks(self) -> tuple[tuple[str, ...], ...]:
        """The ops of each block that may be recomputed."""
        if self.folding is not None:
            return tuple(block[: self.folding.num_ops] for block in self.folding.blocks)
        return recomputable_blocks(self.graph.captured)

    @cached_property
    def starts(self) -> frozenset[str] | None:
        """The ops that a stage may begin with: the first of each repeated block, and of what follows; None is any."""
        if self.folding is None:
            return None
        blocks = self.folding.blocks
        last = blocks[-1][: self.folding.num_ops]
        behind = self.graph.positions[last[-1]] + 1
        after = [node.name for node in self.graph.nodes[behind:] if node.name in self.graph.computed]
        return frozenset((*(block[0] for block in blocks[1:]), *after[:1]))

    @cached_property
    def zones(self) -> Zones:
        """Where ops are in a pass; those of repeated blocks are inner ones."""
        return find_zones(self.bound(1), frozenset(self.folding.block_of) if self.folding is not None else frozenset())

    def bound(self, micro_batch: int) -> LogicalGraph:
        """The whole graph at a microbatch."""
        if micro_batch not in self._bound:
            self._forget(micro_batch)
            self._bound[micro_batch] = _at(self.graph, micro_batch)
        return self._bound[micro_batch]

    def smaller(self, micro_batch: int, again: bool) -> tuple[LogicalGraph, Analysis]:
        """The graph that problems are made from, folded where it can be, and its clusters; with ``again``, where blocks are
        recomputed."""
        if self.folding is None:
            bound = self.bound(micro_batch)
        else:
            if micro_batch not in self._folded:
                self._forget(micro_batch)
                self._folded[micro_batch] = _at(self.folding.graph, micro_batch)
            bound = self._folded[micro_batch]
        key = (micro_batch, again)
        if key not in self._analyses:
            runs = {name: at for at, block in enumerate(self.blocks) for name in block} if again else None
            like = self._analyses.get((micro_batch, not again))
            self._analyses[key] = Analysis(bound, self._pinned, self._stored, runs, like, self.zones, self.counts)
        return bound, self._analyses[key]

    def _forget(self, micro_batch: int) -> None:
        """Make room for a microbatch: the ones that came first go."""
        sizes = dict.fromkeys((*self._bound, *self._folded))
        for old in list(sizes)[: max(0, len(sizes) + (micro_batch not in sizes) - MAX_SIZES)]:
            self._bound.pop(old, None)
            self._folded.pop(old, None)
            for again in (False, True):
                self._analyses.pop((old, again), None)


def _at(graph: LogicalGraph, micro_batch: int) -> LogicalGraph:
    return graph.bind(**dict.fromkeys(graph.symbols, micro_batch))
