"""Warnings of a plan: replicated ops, schedules without a runtime, microbatch effects on the loss, unmeasured costs."""

from __future__ import annotations

from collections import Counter
from itertools import product

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import KINDS, Calibration
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.traffic_by_level import communication_groups
from autosbp.graph.discovered_rules import DiscoveredRule
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.program.microbatch_loss import whole_batch_differences
from autosbp.program.parameter_sharding import sharded_layout
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import RULES
from autosbp.search.problem.cost_weights import GATHER_PER_STEP, GATHER_PER_USE
from autosbp.search.problem.strategy import used_layouts

UNKNOWN = "has no sharding rule, and rule discovery was not run"
SUMS = "cannot be split, only pass on partial sums"


def replication_warnings(graph: LogicalGraph) -> list[str]:
    """Warnings about ops that depend on a parameter and have no layout that splits a tensor."""
    found: Counter[tuple[str, str]] = Counter()
    for node in graph.nodes:
        if node.name in graph.parameter_dependent and node.op not in RULES:
            rule = graph.rules.get(node.rule)
            if rule is None or not _splits(rule):
                found[node.op, UNKNOWN if rule is None else rule.reason or SUMS] += 1
    return [
        f"{op} ({count} node{'s' if count > 1 else ''}) {reason}: it is replicated on every device."
        for (op, reason), count in found.items()
    ]


def runtime_warnings(strategy: Strategy) -> list[str]:
    """Warning about a schedule that the executor cannot run in a trial."""
    if strategy.pipeline is None or strategy.pipeline.schedule.runs:
        return []
    return [f"No runtime supports the schedule {strategy.pipeline.schedule.name}: the plan is only a prediction."]


def precision_warnings(graph: LogicalGraph, cluster: Cluster) -> list[str]:
    """Warnings about half-precision parameters on devices that state no rate for their dtype, and about float16."""
    dtypes = sorted({leaf.meta.dtype for leaf in graph.trained} & {"bfloat16", "float16"})
    devices = [group.device for group in cluster.groups] or [cluster.device]
    lacking = [(dtype, device.name) for dtype in dtypes for device in devices if dtype not in device.peak_flops]
    said = [f"{name} states no rate for {dtype}: that of another dtype is taken." for dtype, name in lacking]
    if "float16" in dtypes:
        said.append("Trials do not scale the loss: small gradients of float16 underflow.")
    return said


def storage_warnings(graph: LogicalGraph, strategy: Strategy, asked: str | None) -> list[str]:
    """Warning if the requested parameter sharding (``asked``: ZeRO-2 or ZeRO-3) applies to no parameter."""
    if asked not in (GATHER_PER_STEP, GATHER_PER_USE):
        return []
    used = used_layouts(graph, dict(strategy.signatures))
    if any(sharded_layout(leaf, used[leaf.name], strategy.mesh) != used[leaf.name] for leaf in graph.trained):
        return []
    return [f"Storage {asked} has no effect: no replicated parameter splits evenly over its devices."]


def degree_warnings(graph: LogicalGraph, strategy: Strategy, tensor: int | None) -> list[str]:
    """Warning if a tensor parallel degree above 1 is requested and no matrix is split."""
    if tensor is None or tensor == 1:
        return []
    used = used_layouts(graph, dict(strategy.signatures))
    matrices = [used[leaf.name] for leaf in graph.parameters if len(leaf.meta.shape) > 1 and leaf.name in used]
    if any(sbp.is_split for layout in matrices for sbp in layout):
        return []
    return [f"A tensor parallel degree of {tensor} has no effect: replicating every op on these devices is faster."]


def batch_warnings(graph: LogicalGraph, strategy: Strategy) -> list[str]:
    """Warnings about ops for which training in microbatches differs from training on the whole batch."""
    return whole_batch_differences(graph, strategy.num_micro * strategy.micro_batch, strategy.micro_batch)


def calibration_warnings(
    graph: LogicalGraph, strategy: Strategy, cluster: Cluster, calibration: Calibration | None
) -> list[str]:
    """Warnings about collectives that the calibration lacks, and about an incomplete calibration.

    Unmeasured collectives of the strategy are grouped by the measurement that their times are predicted from.
    """
    if calibration is None:
        return []
    said = [] if calibration.complete else ["The calibration is incomplete: its run ended early."]
    measured = {(fit.kind, fit.group_shape) for fit in calibration.collectives if fit.num_groups is None}
    everything = {(kind, shape) for kind in KINDS for shape in _group_shapes(cluster.mesh())}
    if strategy.pipeline is None and measured >= everything:
        return said
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    network = NetworkModel(cluster, calibration)
    sources: dict[str, list[str]] = {}
    for kind, shape in sorted(communication_groups(bound, strategy, cluster)):
        found = network.alpha_beta(kind, shape)
        if not found.measured:
            source = "the cluster's description" if found.based_on is None else _name(*found.based_on)
            sources.setdefault(source, []).append(_name(kind, shape))
    return said + [
        f"The calibration did not measure {', '.join(names)}: predicted from {source}."
        for source, names in sources.items()
    ]


def _name(kind: str, group_shape: tuple[int, ...]) -> str:
    return f"{kind} over {'x'.join(map(str, group_shape))}"


def _group_shapes(mesh: Mesh) -> set[tuple[int, ...]]:
    """All shapes of groups of two or more ranks along axes of the mesh."""
    counts: list[set[int]] = [{1} for _ in mesh.level_counts]
    for axis in mesh.axes:
        counts[axis.level] |= {axis.size * count for count in counts[axis.level]}
    return {shape for shape in product(*counts) if max(shape) > 1}


def _splits(rule: DiscoveredRule) -> bool:
    return any(state.startswith("S") for option in rule.options for state in (*option.ins, *option.outs))
