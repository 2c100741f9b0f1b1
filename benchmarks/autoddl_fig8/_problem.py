"""AutoDDL's MLP as a search problem over counts of mesh axes, and its optimum under other readings of the paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autosbp.cluster.spec import Cluster, Device, Level
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.network import NetworkModel
from autosbp.search import SEARCHERS, Costs, Edge, SearchOptions
from benchmarks.autoddl_fig8._count_problem import ChainProblem, product_chain

WIDTHS = (32768, 16384, 4096, 2048, 512)
NODES = (128, 4096)
SAMPLES_PER_NODE = 8
ELEMENT_BYTES = 4
ALPHA_S, BYTES_PER_S = 10e-6, 8.5e9
ENTRIES = ("forward", "both", "none")
# Communication only: copies and kernels take no time.
DEVICE = Device("communication only", "cuda", 1 << 40, {"float32": 1e18}, 1e30, op_overhead_s=0.0)


def boxing_model(num_nodes: int) -> BoxingModel:
    """Boxing model of single-device nodes, as a mesh with axes of size 2."""
    cluster = Cluster(f"{num_nodes} nodes", (Level("node", num_nodes, ALPHA_S, BYTES_PER_S),), DEVICE)
    return BoxingModel(NetworkModel(cluster), cluster.mesh())


def fig8_problem(num_nodes: int, entry: str = "forward") -> ChainProblem:
    """The case of AutoDDL's section 4.6 on ``num_nodes`` nodes."""
    return product_chain(boxing_model(num_nodes), SAMPLES_PER_NODE * num_nodes, WIDTHS, ELEMENT_BYTES, entry)


def readings(num_nodes: int) -> dict[str, float]:
    """Optimum in seconds for each reading of the paper, keyed ``boxing/entry``.

    ``boxing`` is ``cheapest``, any path over layouts, or ``section_4.3``, one collective per change along the paper's
    path. ``entry`` says whether gathering the input, which starts split, is paid in the ``forward`` direction, in
    ``both`` or in ``none``.
    """
    found = {}
    for entry in ENTRIES:
        chain = fig8_problem(num_nodes, entry)
        for name, each in (("cheapest", chain), ("section_4.3", _section_4_3_problem(num_nodes, chain, entry))):
            found[f"{name}/{entry}"] = SEARCHERS["exact"](each.problem, SearchOptions()).cost_s
    return found


def _section_4_3_problem(num_nodes: int, chain: ChainProblem, entry: str) -> ChainProblem:
    model, rows = boxing_model(num_nodes), SAMPLES_PER_NODE * num_nodes
    edges = []
    for edge, width in zip(chain.problem.edges, WIDTHS[1:], strict=False):
        table = np.empty(edge.table.shape)
        for one, made in enumerate(chain.values[edge.u].tolist()):
            for two, read in enumerate(chain.values[edge.v].tolist()):
                table[one, two] = 2 * _path_s(model, rows * width * ELEMENT_BYTES, made, read)
        edges.append(Edge(edge.u, edge.v, table))
    unary = (_entry_by_the_paper(model, num_nodes, chain, entry), *chain.problem.unary_s[1:])
    return replace(chain, problem=replace(chain.problem, unary_s=unary, edges=tuple(edges)))


def _entry_by_the_paper(model: BoxingModel, num_nodes: int, chain: ChainProblem, entry: str) -> Costs:
    """Cost of the input layer: one all-gather over p1."""
    num_bytes = SAMPLES_PER_NODE * num_nodes * WIDTHS[0] * ELEMENT_BYTES
    times = {"none": 0, "forward": 1, "both": 2}[entry]
    gathers = [_ring_s(model, b, num_bytes / 2 ** (a + c)) for a, b, c in chain.values[0].tolist()]
    alone: Costs = fig8_problem(num_nodes, "none").problem.unary_s[0]
    found: Costs = alone + times * np.array(gathers)
    return found


def _ring_s(model: BoxingModel, axes: int, message: float) -> float:
    """Seconds of an all-gather, reduce-scatter or all-to-all over ``axes`` axes of size 2."""
    return model.network.time_s("all_gather", message, model.mesh.group_shape(range(axes)))


def _path_s(model: BoxingModel, num_bytes: int, made: list[int], read: list[int]) -> float:
    """Seconds of (S0:a, S1:b, P:c) -> split over both dims -> (S0:a', B:b', S1:c') in one direction.

    The path is a reduce-scatter of P over the columns, an all-to-all unless the rows stay, and an all-gather of the
    columns; or the same with rows and columns exchanged, if that avoids the all-to-all.
    """
    (a, b, c), (rows, copies, inner) = made, read
    scatter = _ring_s(model, c, num_bytes / 2 ** (a + b))
    gather = _ring_s(model, copies, num_bytes / 2 ** (rows + inner))
    moved = 0 if a == rows or b == inner else abs(a - rows)
    return scatter + _ring_s(model, moved, num_bytes / model.mesh.size) + gather
