"""Lower bounds on the work of pipeline chunks, wherever a model of single ops is cut.

A chunk does all work of whatever lies whole in it: an op takes at least the time of its best layout; a cluster of ops
at least that of its best common layout; and several clusters at least what TRW-S messages (``solvers.trws``) prove of
them and of the boxing between them. These bounds are taken of the whole model, its halves, their halves, and so on, so
that little is lost besides the parts that a cut goes through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import Edge, SearchProblem
from autosbp.search.bounds.chunk_weights import ChunkWorkItems
from autosbp.search.problem.builder import BuiltProblem
from autosbp.search.solvers.reduced_cost_fixing import canonical
from autosbp.search.solvers.trws import TrwsMessages

Ints = NDArray[np.int64]
Span = tuple[int, int]
SWEEPS, MIN_IMPROVEMENT = 8, 1e-4
MIN_HALVED_VARIABLES = 4
"""Number of variables up to which a part is not halved."""


def chunk_work_items(
    built: BuiltProblem,
    nodes: Sequence[str],
    places: Sequence[int],
    count: int,
    check: Callable[[], None],
) -> ChunkWorkItems:
    """Work items of a stage that holds the whole model (``LayoutProblems.stage_problem``).

    Args:
        built: with the costs of every allowed parameter sharding, the fastest for a whole step first.
        nodes: the model's ops, in order.
        places: indices of the ops before which the model may be cut.
        count: microbatches of a step.
        check: called often; may raise to abandon the work.
    """
    assert built.detail is not None
    at = {name: place for place, name in enumerate(nodes)}
    borders = np.array([0, *places, len(nodes)])
    between = [None if span is None else _enclosing_borders(span, borders) for span in _spans(built, at)]
    rows: list[tuple[Span, tuple[float, ...]]] = []
    zero, alone = np.zeros(1), [0.0] * built.problem.num_variables
    for variable, (cluster, part) in enumerate(zip(built.clusters, built.detail.parts, strict=False)):
        whole = between[variable]
        if whole is None:
            continue
        passes = part.seconds - (part.stored[0].seconds if part.stored else zero)
        once = [float((way.seconds - way.often).min()) for way in part.stored] or [0.0]
        more_s = max(float(passes.min()) / count - part.forward_s - part.backward_s, 0.0)
        # Parameters that are gathered for each use cost less once a step and more in each pass.
        rows.append((whole, (0.0, more_s, 0.0, 0.0, 0.0, min(once), max(once[0] - min(once), 0.0))))
        for node, op in zip(cluster.nodes, part.ops, strict=True):
            if node.name in at and (seconds := op.forward_s + op.backward_s):
                place = _enclosing_borders((at[node.name], at[node.name]), borders)
                rows.append((place, (count * seconds, seconds, *op, 0.0, 0.0)))
                alone[variable] += count * seconds
    for span, step_s in _excess_items(built.problem, between, alone, check):
        rows.append((span, (step_s, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)))
    begins, ends = np.array([span for span, _ in rows], dtype=np.int64).reshape(-1, 2).T
    keys, which = np.unique(ends * len(borders) + begins, return_inverse=True)
    columns = np.array([seconds for _, seconds in rows]).reshape(-1, 7).T
    summed = np.stack([np.bincount(which, column, len(keys)).astype(np.float64) for column in columns])
    return ChunkWorkItems(keys % len(borders), keys // len(borders), summed, len(borders), count)


def _spans(built: BuiltProblem, at: dict[str, int]) -> list[Span | None]:
    """First and last op of each variable.

    A copy in another layout spans its producer and its first reader. Copies of parameters and inputs have None."""
    clusters = [[at[node.name] for node in cluster.nodes if node.name in at] for cluster in built.clusters]
    spans: list[Span | None] = [(min(inside), max(inside)) if inside else None for inside in clusters]
    makers = {node.name: index for index, cluster in enumerate(built.clusters) for node in cluster.nodes}
    near: dict[int, set[int]] = {}
    for edge in built.problem.edges:
        near.setdefault(edge.u, set()).add(edge.v)
        near.setdefault(edge.v, set()).add(edge.u)
    for copy in range(len(built.clusters), built.problem.num_variables):
        maker = makers.get(built.anchors[copy])
        made = spans[maker] if maker is not None and maker in near.get(copy, ()) else None
        read = [spans[each] for each in near.get(copy, ()) if each != maker and each < len(built.clusters)]
        reads = [span for span in read if span is not None]
        spans.append(_hull(made, min(reads, key=lambda span: span[1])) if made is not None and reads else None)
    return spans


def _hull(one: Span, other: Span) -> Span:
    return min(one[0], other[0]), max(one[1], other[1])


def _enclosing_borders(span: Span, borders: Ints) -> Span:
    """Last border before the span, and first border after it."""
    begin, end = np.searchsorted(borders, span, side="right").tolist()
    return begin - 1, end


def _excess_items(
    problem: SearchProblem, between: Sequence[Span | None], alone: Sequence[float], check: Callable[[], None]
) -> Iterator[tuple[Span, float]]:
    """Seconds of a step that a chunk pays if it holds everything between two borders.

    Yields, per variable, its excess over its ops ``alone``; and, for growing sets of variables, their excess over the
    sum of their parts."""
    problem = canonical(problem).problem
    costs = list(problem.unary_s)
    for edge in problem.edges:  # refunds to a parameter's readers were paid when it was stored
        refund = float(edge.table.min())
        if refund < 0:
            costs[edge.u] = costs[edge.u] + refund
    least = [float(own.min()) for own in costs]
    placed = [(span, at) for at, span in enumerate(between) if span is not None]
    for span, at in placed:
        yield span, least[at] - alone[at]
    windows = _RecursiveBounds(replace(problem, unary_s=tuple(costs)), least, check)
    found: list[tuple[Span, float]] = []
    windows.together(sorted(placed), found)
    yield from found


class _RecursiveBounds:
    """Parts of a problem between two borders, halved recursively."""

    def __init__(self, problem: SearchProblem, least: Sequence[float], check: Callable[[], None]) -> None:
        self._problem, self._least, self._check = problem, least, check
        self._near: list[list[Edge]] = [[] for _ in least]
        for edge in problem.edges:
            self._near[edge.u].append(edge)

    def together(self, placed: Sequence[tuple[Span, int]], found: list[tuple[Span, float]]) -> float:
        """Least seconds of these variables; appends the excess of each part over its own parts to ``found``."""
        inside = [at for _, at in placed]
        parts_s = sum(self._least[at] for at in inside)
        if len(inside) < 2:
            return parts_s
        if len(inside) > MIN_HALVED_VARIABLES:
            middle = self._middle(placed, parts_s)
            before = [each for each in placed if each[0][1] <= middle]
            behind = [each for each in placed if each[0][0] >= middle]
            if before and behind:
                across = len(placed) - len(before) - len(behind)
                parts_s = sum(self._least[at] for (begin, end), at in placed if begin < middle < end) if across else 0.0
                parts_s += self.together(before, found) + self.together(behind, found)
        whole_s = self._bound_s(sorted(inside))
        if whole_s > parts_s:
            found.append(((min(span[0] for span, _ in placed), max(span[1] for span, _ in placed)), whole_s - parts_s))
        return max(whole_s, parts_s)

    def _middle(self, placed: Sequence[tuple[Span, int]], whole_s: float) -> int:
        """The border with half of the seconds before it."""
        seconds = 0.0
        for (_, end), at in placed:
            seconds += self._least[at]
            if seconds >= whole_s / 2:
                return end
        return placed[-1][0][1]

    def _bound_s(self, inside: Sequence[int]) -> float:
        new = {variable: at for at, variable in enumerate(inside)}
        edges = [Edge(new[e.u], new[e.v], e.table) for own in inside for e in self._near[own] if e.v in new]
        if not edges:
            return -np.inf
        whole = self._problem
        part = SearchProblem(
            tuple(whole.names[v] for v in inside),
            tuple(whole.unary_s[v] for v in inside),
            tuple(whole.memory_bytes[v] for v in inside),
            tuple(edges),
        )
        messages, bound = TrwsMessages(part, self._check), -np.inf
        for _ in range(SWEEPS):
            messages.sweep()
            if messages.bound_s - bound <= MIN_IMPROVEMENT * abs(messages.bound_s):
                break
            bound = messages.bound_s
        return messages.bound_s
