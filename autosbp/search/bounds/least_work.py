"""What the chunks of a pipeline take at the least, wherever a model of single ops is cut.

Whatever lies whole in a chunk is done there: an op takes no less than in its best layout, a cluster of ops no less than in
the best that they have together, and ever more clusters no less than messages (``searchers.messages``) prove of them and of
what is boxed between them. That is asked of the whole model, of its halves, of theirs, and so on, so that what a cut goes
through is lost, and little else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import Edge, SearchProblem
from autosbp.search.bounds.chunk_work import ChunkWork
from autosbp.search.problem.build import BuiltProblem
from autosbp.search.searchers.messages import Messages
from autosbp.search.searchers.pruning import canonical

Ints = NDArray[np.int64]
Span = tuple[int, int]
SWEEPS, STALLED = 8, 1e-4
SMALL = 4
"""Variables that are not looked at in parts."""


def chunk_work(
    built: BuiltProblem,
    nodes: Sequence[str],
    places: Sequence[int],
    count: int,
    check: Callable[[], None],
) -> ChunkWork:
    """Of the problem of a stage that has the whole model (``LayoutProblems.stage_problem``).

    Args:
        built: with the costs of every way to store parameters that a strategy may have, the least of a step first.
        nodes: the model's ops, in order; ``places`` are those before which there may be a cut.
        check: called often; may raise to abandon the work.
    """
    assert built.detail is not None
    at = {name: place for place, name in enumerate(nodes)}
    borders = np.array([0, *places, len(nodes)])
    between = [None if span is None else _between(span, borders) for span in _spans(built, at)]
    rows: list[tuple[Span, tuple[float, ...]]] = []
    zero, alone = np.zeros(1), [0.0] * built.problem.num_variables
    for variable, (cluster, part) in enumerate(zip(built.clusters, built.detail.parts, strict=False)):
        whole = between[variable]
        if whole is None:
            continue
        passes = part.seconds - (part.stored[0].seconds if part.stored else zero)
        once = [float((way.seconds - way.often).min()) for way in part.stored] or [0.0]
        more_s = max(float(passes.min()) / count - part.forward_s - part.backward_s, 0.0)
        # Parameters that are gathered for each use cost less once, and more with each pass.
        rows.append((whole, (0.0, more_s, 0.0, 0.0, 0.0, min(once), max(once[0] - min(once), 0.0))))
        for node, op in zip(cluster.nodes, part.ops, strict=True):
            if node.name in at and (seconds := op.forward_s + op.backward_s):
                place = _between((at[node.name], at[node.name]), borders)
                rows.append((place, (count * seconds, seconds, *op, 0.0, 0.0)))
                alone[variable] += count * seconds
    for span, step_s in _steps(built.problem, between, alone, check):
        rows.append((span, (step_s, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)))
    begins, ends = np.array([span for span, _ in rows], dtype=np.int64).reshape(-1, 2).T
    keys, which = np.unique(ends * len(borders) + begins, return_inverse=True)
    columns = np.array([seconds for _, seconds in rows]).reshape(-1, 7).T
    summed = np.stack([np.bincount(which, column, len(keys)).astype(np.float64) for column in columns])
    return ChunkWork(keys % len(borders), keys // len(borders), summed, len(borders), count)


def _spans(built: BuiltProblem, at: dict[str, int]) -> list[Span | None]:
    """The first and last op of each variable. A copy in another layout is there where what makes it is, and its first
    reader; of what belongs to parameters, or to inputs, nothing is said."""
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


def _between(span: Span, borders: Ints) -> Span:
    """The last border before, and the first one behind."""
    begin, end = np.searchsorted(borders, span, side="right").tolist()
    return begin - 1, end


def _steps(
    problem: SearchProblem, between: Sequence[Span | None], alone: Sequence[float], check: Callable[[], None]
) -> Iterator[tuple[Span, float]]:
    """Seconds of a step that a chunk has where it has all between two borders: of each variable what it takes more than its
    ops ``alone``, and of ever more of them what they take more together than in parts."""
    problem = canonical(problem).problem
    costs = list(problem.unary_s)
    for edge in problem.edges:  # what readers of a parameter get back was paid to store it
        refund = float(edge.table.min())
        if refund < 0:
            costs[edge.u] = costs[edge.u] + refund
    least = [float(own.min()) for own in costs]
    placed = [(span, at) for at, span in enumerate(between) if span is not None]
    for span, at in placed:
        yield span, least[at] - alone[at]
    windows = _Windows(replace(problem, unary_s=tuple(costs)), least, check)
    found: list[tuple[Span, float]] = []
    windows.together(sorted(placed), found)
    yield from found


class _Windows:
    """Parts of a problem between two borders, halved again and again."""

    def __init__(self, problem: SearchProblem, least: Sequence[float], check: Callable[[], None]) -> None:
        self._problem, self._least, self._check = problem, least, check
        self._near: list[list[Edge]] = [[] for _ in least]
        for edge in problem.edges:
            self._near[edge.u].append(edge)

    def together(self, placed: Sequence[tuple[Span, int]], found: list[tuple[Span, float]]) -> float:
        """What these variables take at the least; ``found`` is told of each part what it takes more than its own parts."""
        inside = [at for _, at in placed]
        parts_s = sum(self._least[at] for at in inside)
        if len(inside) < 2:
            return parts_s
        if len(inside) > SMALL:
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
        """The border that has half of the seconds before it."""
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
        messages, bound = Messages(part, self._check), -np.inf
        for _ in range(SWEEPS):
            messages.sweep()
            if messages.bound_s - bound <= STALLED * abs(messages.bound_s):
                break
            bound = messages.bound_s
        return messages.bound_s
