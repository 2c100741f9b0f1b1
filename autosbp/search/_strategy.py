"""From an assignment of a search problem to a strategy: layouts of every op, stored parameters, boxing paths."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.costmodel.boxing import BoxingModel
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan import BoxingKey, Signature, Strategy
from autosbp.sbp.placement import I, NdSbp, P, without_invariants
from autosbp.search._build import BuiltProblem


def strategy_of(
    built: BuiltProblem,
    assignment: Sequence[int],
    graph: LogicalGraph,
    boxing: BoxingModel,
    *,
    global_batch: int,
    micro_batch: int,
    optimizer: str,
) -> Strategy:
    """The strategy that the assignment stands for."""
    signatures: dict[str, Signature] = {}
    for cluster, domain, value in zip(built.clusters, built.domains, assignment, strict=False):
        for at, node in enumerate(cluster.nodes):
            chosen = [cluster.options[option][at] for option in domain.rows[value]]
            num_ins, num_outs = len(cluster.options[0][at].ins), len(cluster.options[0][at].outs)
            signatures[node.name] = Signature(
                tuple(tuple(option.ins[position] for option in chosen) for position in range(num_ins)),
                tuple(tuple(option.outs[index] for option in chosen) for index in range(num_outs)),
            )
    ordered = {node.name: signatures[node.name] for node in graph.nodes if node.name in signatures}
    parameters = _stored(built, assignment, graph, ordered)
    paths = _paths(graph, boxing, ordered, parameters)
    return Strategy(boxing.mesh, ordered, parameters, paths, global_batch, micro_batch, optimizer)


def _stored(
    built: BuiltProblem, assignment: Sequence[int], graph: LogicalGraph, signatures: dict[str, Signature]
) -> dict[str, NdSbp]:
    """Stored layouts: as used, with P (a bias under a partial sum) stored whole."""
    used: dict[str, NdSbp] = {}
    for node in graph.nodes:
        if node.name in signatures:
            for ref, layout in zip(node.refs(), signatures[node.name].ins, strict=True):
                if ref.name in graph.parameter_names:
                    used[ref.name] = tuple(I if sbp == P else sbp for sbp in layout)
    for name, (variable, layouts) in built.parameter_variables.items():
        used[name] = layouts[assignment[variable]]
    return {leaf.name: used[leaf.name] for leaf in graph.parameters}


def _paths(
    graph: LogicalGraph, boxing: BoxingModel, signatures: dict[str, Signature], parameters: dict[str, NdSbp]
) -> dict[BoxingKey, tuple[NdSbp, ...]]:
    layouts: dict[Ref, NdSbp] = {Ref(name): layout for name, layout in parameters.items()}
    paths: dict[BoxingKey, tuple[NdSbp, ...]] = {}

    def add(ref: Ref, dst: NdSbp, reader: str) -> None:
        meta, src = graph.meta(ref), layouts[ref]
        gradient = graph.has_gradient(ref) and reader in graph.differentiable
        if not gradient:
            src = without_invariants(src)
        key = (meta.sizes, meta.num_bytes, gradient, src, dst)
        if src != dst and key not in paths:
            steps = boxing.plan(src, dst, meta.sizes, meta.num_bytes, gradient)
            paths[key] = (src, *(step.dst for step in steps))

    for node in graph.nodes:
        if node.name not in signatures:
            continue
        for ref, wanted in zip(node.refs(), signatures[node.name].ins, strict=True):
            if ref.name in graph.computed:
                add(ref, wanted, node.name)
        for index, layout in enumerate(signatures[node.name].outs):
            layouts[Ref(node.name, index)] = layout
    add(graph.loss, (I,) * boxing.mesh.ndim, graph.loss.name)
    return paths
