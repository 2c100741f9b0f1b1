"""What a plan says of itself: ops that run whole on every device, what no runtime here runs yet, what microbatches make of
the loss, and what was not measured."""

from __future__ import annotations

from collections import Counter
from itertools import product

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import KINDS, Calibration
from autosbp.costmodel.levels import charged_groups
from autosbp.costmodel.network import NetworkModel
from autosbp.graph.found import FoundRule
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Strategy
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import RULES
from autosbp.sbp.storage import split_storage
from autosbp.sbp.whole_batch import difference
from autosbp.search.problem.strategy import used_layouts
from autosbp.search.problem.weights import STEP, USE

UNKNOWN = "has no sharding rule, and its layouts were not looked for"
SUMS = "cannot be split, only pass on partial sums"


def replication_warnings(graph: LogicalGraph) -> list[str]:
    """A sentence for each op that depends on a parameter and has no layout that splits a tensor."""
    found: Counter[tuple[str, str]] = Counter()
    for node in graph.nodes:
        if node.name in graph.computed and node.op not in RULES:
            rule = graph.rules.get(node.rule)
            if rule is None or not _splits(rule):
                found[node.op, UNKNOWN if rule is None else rule.reason or SUMS] += 1
    return [
        f"{op} ({count} node{'s' if count > 1 else ''}) {reason}: every device runs it whole."
        for (op, reason), count in found.items()
    ]


def runtime_warnings(strategy: Strategy) -> list[str]:
    """A sentence for what a trial refuses."""
    if strategy.pipeline is None or strategy.pipeline.schedule.runs:
        return []
    return [f"No runtime here runs the schedule {strategy.pipeline.schedule.name} yet: the plan is a prediction alone."]


def storage_warnings(graph: LogicalGraph, strategy: Strategy, asked: str | None) -> list[str]:
    """A sentence where parameters were to be stored apart from their use, and none can be."""
    if asked not in (STEP, USE):
        return []
    used = used_layouts(graph, dict(strategy.signatures))
    if any(split_storage(leaf, used[leaf.name], strategy.mesh) != used[leaf.name] for leaf in graph.trained):
        return []
    return [f"Storage {asked} has no effect: no parameter that several devices use whole splits evenly over them."]


def degree_warnings(graph: LogicalGraph, strategy: Strategy, tensor: int | None) -> list[str]:
    """A sentence where matrices were to be split, and none is."""
    if tensor is None or tensor == 1:
        return []
    used = used_layouts(graph, dict(strategy.signatures))
    matrices = [used[leaf.name] for leaf in graph.parameters if len(leaf.meta.shape) > 1 and leaf.name in used]
    if any(sbp.is_split for layout in matrices for sbp in layout):
        return []
    return [f"A tensor parallel degree of {tensor} has no effect: to repeat every op on these devices takes less."]


def batch_warnings(graph: LogicalGraph, strategy: Strategy) -> list[str]:
    """A sentence where training in the strategy's microbatches is not training on the whole batch."""
    return difference(graph, strategy.num_micro * strategy.micro_batch, strategy.micro_batch)


def calibration_warnings(
    graph: LogicalGraph, strategy: Strategy, cluster: Cluster, calibration: Calibration | None
) -> list[str]:
    """A sentence for collectives of the strategy that the calibration has not measured, by what they are predicted from,
    and for one that is not complete."""
    if calibration is None:
        return []
    said = [] if calibration.complete else ["The calibration is not complete: its run ended early."]
    measured = {(fit.kind, fit.group_shape) for fit in calibration.collectives if fit.num_groups is None}
    everything = {(kind, shape) for kind in KINDS for shape in _group_shapes(cluster.mesh())}
    if strategy.pipeline is None and measured >= everything:
        return said
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    network = NetworkModel(cluster, calibration)
    sources: dict[str, list[str]] = {}
    for kind, shape in sorted(charged_groups(bound, strategy, cluster)):
        found = network.alpha_beta(kind, shape)
        if not found.measured:
            source = "the cluster's description" if found.based_on is None else _name(*found.based_on)
            sources.setdefault(source, []).append(_name(kind, shape))
    return said + [
        f"The calibration has not measured {', '.join(names)}: predicted from {source}."
        for source, names in sources.items()
    ]


def _name(kind: str, group_shape: tuple[int, ...]) -> str:
    return f"{kind} over {'x'.join(map(str, group_shape))}"


def _group_shapes(mesh: Mesh) -> set[tuple[int, ...]]:
    """All shapes of groups of two or more ranks over axes of the mesh."""
    counts: list[set[int]] = [{1} for _ in mesh.level_counts]
    for axis in mesh.axes:
        counts[axis.level] |= {axis.size * count for count in counts[axis.level]}
    return {shape for shape in product(*counts) if max(shape) > 1}


def _splits(rule: FoundRule) -> bool:
    return any(state.startswith("S") for option in rule.options for state in (*option.ins, *option.outs))
