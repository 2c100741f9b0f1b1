"""Turns an assignment of a search problem into a strategy: op layouts, stored parameters, boxing paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autosbp.costmodel.boxing import BoxingModel
from autosbp.graph.ir import LogicalGraph, Parameter, Ref
from autosbp.plan.plan import BoxingKey, Signature, Strategy
from autosbp.program.parameter_sharding import sharded_layout
from autosbp.sbp.layout import I, NdSbp, P, invariant_as_replicated
from autosbp.search.problem.builder import BuiltProblem
from autosbp.search.problem.expand_repeats import ExpandedProblem

Stored = Callable[[Parameter, NdSbp], bool]
"""Whether storage of a parameter used in this layout is split over the ranks that would hold the same values."""


def strategy_of(
    problem: BuiltProblem | ExpandedProblem,
    assignment: Sequence[int],
    graph: LogicalGraph,
    boxing: BoxingModel,
    *,
    global_batch: int,
    micro_batch: int,
    optimizer: str,
    gather: str = "step",
    splits: Stored | None = None,
) -> Strategy:
    """The strategy that an assignment stands for.

    Args:
        gather: when split parameters are gathered: once a ``step``, or for each ``use``.
        splits: which parameters are stored split; None: none.
    """
    built = problem if isinstance(problem, BuiltProblem) else problem.built
    signatures: dict[str, Signature] = {}
    known: dict[tuple[int, int, int], Signature] = {}
    for variable, value, names in _choices(problem, assignment):
        cluster, domain = built.clusters[variable], built.domains[variable]
        for at, node in enumerate(cluster.nodes):
            if (variable, value, at) not in known:
                chosen = [cluster.options[option][at] for option in domain.rows[value]]
                num_ins, num_outs = len(cluster.options[0][at].ins), len(cluster.options[0][at].outs)
                known[variable, value, at] = Signature(
                    tuple(tuple(option.ins[position] for option in chosen) for position in range(num_ins)),
                    tuple(tuple(option.outs[index] for option in chosen) for index in range(num_outs)),
                )
            signatures[names(node.name)] = known[variable, value, at]
    ordered = {node.name: signatures[node.name] for node in graph.nodes if node.name in signatures}
    used = used_layouts(graph, ordered)
    stored = _stored(problem, assignment, graph, used)
    shared = {name for name, _, _ in _parameter_choices(problem, assignment)}
    paths: dict[BoxingKey, tuple[NdSbp, ...]] = {}
    for leaf in graph.parameters:
        # Parameters used as P already have another stored layout; those with several readers have their own variable.
        own = leaf.name not in shared and used[leaf.name] == stored[leaf.name] and leaf.trained
        apart = sharded_layout(leaf, used[leaf.name], boxing.mesh) if P not in used[leaf.name] else used[leaf.name]
        if own and splits is not None and splits(leaf, used[leaf.name]):
            stored[leaf.name] = apart
        if stored[leaf.name] == apart != used[leaf.name]:
            # One all-gather brings several parameters together.
            key: BoxingKey = (leaf.meta.sizes, leaf.meta.num_bytes, leaf.meta.is_float, apart, used[leaf.name])
            paths[key] = (apart, used[leaf.name])
    add_paths(paths, graph, boxing, ordered, stored)
    return Strategy(boxing.mesh, ordered, stored, paths, global_batch, micro_batch, optimizer, gather)


def _choices(
    problem: BuiltProblem | ExpandedProblem, assignment: Sequence[int]
) -> Sequence[tuple[int, int, Callable[[str], str]]]:
    """Cluster, value, and a map to op names, for each cluster of the whole graph."""
    if isinstance(problem, BuiltProblem):
        return [(at, assignment[at], _same) for at in range(len(problem.clusters))]
    return [
        (at, assignment[place], problem.names(at, block))
        for at in range(len(problem.built.clusters))
        for place, block in problem.copies[at]
    ]


def _same(name: str) -> str:
    return name


def used_layouts(graph: LogicalGraph, signatures: Mapping[str, Signature]) -> dict[str, NdSbp]:
    """Layout in which each parameter is read, by its last reader."""
    used: dict[str, NdSbp] = {}
    for node in graph.nodes:
        if node.name in signatures:
            for ref, layout in zip(node.refs(), signatures[node.name].ins, strict=True):
                if ref.name in graph.parameter_names:
                    used[ref.name] = layout
    return used


def _parameter_choices(
    problem: BuiltProblem | ExpandedProblem, assignment: Sequence[int]
) -> Sequence[tuple[str, tuple[NdSbp, ...], int]]:
    """Name, layouts and value of each parameter that has its own variable."""
    if isinstance(problem, BuiltProblem):
        return [
            (name, layouts, assignment[variable]) for name, (variable, layouts) in problem.parameter_variables.items()
        ]
    return [
        (problem.names(variable, block)(name), layouts, assignment[place])
        for name, (variable, layouts) in problem.built.parameter_variables.items()
        for place, block in problem.copies[variable]
    ]


def _stored(
    problem: BuiltProblem | ExpandedProblem, assignment: Sequence[int], graph: LogicalGraph, used: dict[str, NdSbp]
) -> dict[str, NdSbp]:
    """Stored layouts: as used, with P (a bias under a partial sum) stored whole."""
    stored = {name: tuple(I if sbp == P else sbp for sbp in layout) for name, layout in used.items()}
    stored |= {name: layouts[value] for name, layouts, value in _parameter_choices(problem, assignment)}
    return {leaf.name: stored[leaf.name] for leaf in graph.parameters}


def add_paths(
    paths: dict[BoxingKey, tuple[NdSbp, ...]],
    graph: LogicalGraph,
    boxing: BoxingModel,
    signatures: dict[str, Signature],
    parameters: dict[str, NdSbp],
) -> None:
    """Add the cheapest path of every boxing that has none yet to ``paths``."""
    layouts: dict[Ref, NdSbp] = {Ref(name): layout for name, layout in parameters.items()}

    def add(ref: Ref, dst: NdSbp, reader: str) -> None:
        src = layouts[ref]
        if src == dst and I not in src:
            return
        meta = graph.meta(ref)
        gradient = graph.has_gradient(ref) and reader in graph.differentiable
        if not gradient:
            src = invariant_as_replicated(src)
        key = (meta.sizes, meta.num_bytes, gradient, src, dst)
        if src != dst and key not in paths:
            steps = boxing.plan(src, dst, meta.sizes, meta.num_bytes, gradient)
            paths[key] = (src, *(step.dst for step in steps))

    for node in graph.nodes:
        if node.name not in signatures:
            continue
        for ref, wanted in zip(node.refs(), signatures[node.name].ins, strict=True):
            if ref.name in graph.parameter_dependent:
                add(ref, wanted, node.name)
        for index, layout in enumerate(signatures[node.name].outs):
            layouts[Ref(node.name, index)] = layout
    add(graph.loss, (I,) * boxing.mesh.ndim, graph.loss.name)
