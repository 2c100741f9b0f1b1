"""A chain of matrix products with layouts as counts: AutoDDL's search space (section 4.2) on any number of equal axes.

Each product uses a of the mesh's k axes for the rows (p0), b for the columns (p1) and c for the sum (p2),
a + b + c = k: input (S0:a, B:b, S1:c), weight (B:a, S1:b, S0:c), output (S0:a, S1:b, P:c). So a product has
(k+1)(k+2)/2 values, while explicit axes would give 3^k. Outputs are boxed to the best split layout for the element-wise
op in between, and from there to the next product's input.

No assignment of axes to roles, with any nesting order of splits, costs less than the optimum over counts. It is
attained if local copies cost nothing: the layouts of a chain can be chosen one after the other, each with the counts
wanted (``autoddl_fig8._count_boxing``). In a graph where values meet again it would only be a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.boxing import BoxingModel
from autosbp.search._base import Costs, Edge, SearchProblem
from autosbp.utils.arrays import unique_ints
from benchmarks.autoddl_fig8._count_boxing import CountBoxing, Counts, compositions, multiplicity


@dataclass(frozen=True, slots=True, eq=False)
class ChainProblem:
    """A problem with ``values[i][x]``, the counts (a, b, c) of value x of product i."""

    problem: SearchProblem
    values: tuple[Counts, ...]


def product_chain(
    boxing: BoxingModel, rows: int, widths: Sequence[int], element_bytes: int, entry: str = "forward"
) -> ChainProblem:
    """The problem of one training step of ``x W1 .. Wn`` with x of ``rows`` x ``widths[0]``; communication alone.

    Costs are boxing between products forward and backward, and one all-reduce of each weight's gradient over its a
    axes. The input comes in any split layout; its gathering costs only forward, as it has no gradient. The last output
    stays as the product leaves it. There is no memory limit.

    Args:
        entry: cost of the input's boxing: ``forward``, ``both`` for backward too, or ``none``.

    Raises:
        InputError: the axes of the mesh are not equal.
    """
    values = []
    for before, behind in zip(widths, widths[1:], strict=False):
        most = [multiplicity(extent, boxing.mesh.axes[0].size, boxing.mesh.ndim) for extent in (rows, behind, before)]
        every = compositions(boxing.mesh.ndim, 3)
        values.append(every[(every <= np.array(most)).all(axis=1)])
    pairs = list(zip(widths, widths[1:], strict=False))
    unary = [
        _gradients_s(boxing, counts, before * behind * element_bytes)
        for counts, (before, behind) in zip(values, pairs, strict=True)
    ]
    if entry != "none":
        unary[0] = unary[0] + _entry_s(boxing, (rows, widths[0]), element_bytes, values[0], entry == "both")
    edges = tuple(
        Edge(at, at + 1, _between_s(boxing, (rows, width), element_bytes, values[at], values[at + 1]))
        for at, width in enumerate(widths[1:-1])
    )
    names = tuple(f"matmul{at}:{before}x{behind}" for at, (before, behind) in enumerate(pairs))
    memory = tuple(np.zeros(len(counts), dtype=np.int64) for counts in values)
    return ChainProblem(SearchProblem(names, tuple(unary), memory, edges), tuple(values))


def _gradients_s(boxing: BoxingModel, counts: Counts, num_bytes: int) -> Costs:
    """[value] seconds of the all-reduce of a weight's gradient."""
    size, mesh = boxing.mesh.axes[0].size, boxing.mesh
    local = num_bytes / float(size) ** (counts[:, 1] + counts[:, 2])
    seconds = np.zeros(len(counts))
    for count in unique_ints(counts[:, 0]):
        chosen = counts[:, 0] == count
        shape = mesh.group_shape(range(int(count)))
        seconds[chosen] = boxing.network.times_s("all_reduce", local[chosen], shape)
    return seconds


def splits(table: CountBoxing) -> Counts:
    """The layouts in which every axis splits a dim."""
    whole = [at for at, state in enumerate(table.states) if not state.is_split]
    found: Counts = table.counts[(table.counts[:, whole] == 0).all(axis=1)]
    return found


def _entry_s(
    boxing: BoxingModel, shape: tuple[int, int], element_bytes: int, reader: Counts, differentiable: bool
) -> Costs:
    table = CountBoxing(boxing, shape, shape[0] * shape[1] * element_bytes, differentiable)
    wanted = table.rows(S0=reader[:, 0], B=reader[:, 1], S1=reader[:, 2])
    found: NDArray[np.float64] = table.cost_s(splits(table), wanted).min(axis=0)
    return found


def _between_s(boxing: BoxingModel, shape: tuple[int, int], element_bytes: int, maker: Counts, reader: Counts) -> Costs:
    """[maker, reader] seconds from a product's output through the best split layout to the next one's input."""
    table = CountBoxing(boxing, shape, shape[0] * shape[1] * element_bytes)
    made = table.rows(S0=maker[:, 0], S1=maker[:, 1], P=maker[:, 2])
    wanted = table.rows(S0=reader[:, 0], B=reader[:, 1], S1=reader[:, 2])
    between = splits(table)
    onto, off = table.cost_s(made, between), table.cost_s(between, wanted)
    best = np.full((len(made), len(wanted)), np.inf)
    for at in range(len(between)):
        np.minimum(best, onto[:, at, None] + off[at], out=best)
    return best
