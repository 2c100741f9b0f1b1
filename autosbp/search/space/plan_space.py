"""The space that a plan was found in: stages, mesh, microbatch and storage as the plan has them, layouts free again."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan, Strategy
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import P
from autosbp.sbp.storage import split_storage
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.assembly import Allowed
from autosbp.search.problem.baselines import Roles
from autosbp.search.problem.clusters import OpCluster, form_clusters
from autosbp.search.problem.degrees import Degrees, constrained, without_copies
from autosbp.search.problem.pinned import read_pins
from autosbp.search.problem.strategy import used_layouts
from autosbp.search.problem.weights import AS_USED, FASTEST, STEP, USE
from autosbp.search.stages.layouts import LayoutProblems, Space, Structure
from autosbp.search.stages.stage_meshes import stage_meshes


def check_sources(graph: LogicalGraph, plan: Plan, calibration: Calibration | None) -> None:
    """Refuse another graph or calibration than the plan was made from: costs would not be its own."""
    made_from = plan.document["provenance"]
    if graph.graph_hash != made_from.get("graph_hash"):
        raise InputError("graph", graph.graph_hash, f"the plan's graph {made_from.get('graph_hash')} is expected")
    wanted = made_from.get("calibration_id")
    given = None if calibration is None else calibration.calibration_id
    if given != wanted:
        limit = f"the plan's calibration {wanted} is expected" if wanted else "none is expected: the plan has none"
        raise InputError("calibration", given, limit)


def plan_problems(
    graph: LogicalGraph, plan: Plan, options: PlanOptions, calibration: Calibration | None
) -> LayoutProblems:
    """The layout problems of the plan's batch and optimizer."""
    cluster, strategy = plan.cluster, plan.strategy
    if cluster.groups and strategy.pipeline:
        raise InputError("plan", plan.plan_id, "a plan whose stages have devices that are alike is expected")
    return LayoutProblems(
        graph, NetworkModel(cluster, calibration), ComputeModel(cluster.device, calibration),
        global_batch=strategy.global_batch, optimizer=strategy.optimizer,
        pins=read_pins(graph, _stage_mesh(plan), options.pins), offload=strategy.offload,
        sizes=(strategy.bucket_bytes,), schedules=options.schedules,
    )  # fmt: skip


def plan_space(problems: LayoutProblems, plan: Plan, options: PlanOptions) -> Space:
    """The plan's own space; pins and degrees stay."""
    strategy = plan.strategy
    allowed = _allowed(problems, plan, options)
    if options.storage == AS_USED and not problems.pins:
        allowed = without_copies(allowed)
    structure = Structure(strategy.num_stages, strategy.mesh, allowed)
    again = bool(strategy.recompute and problems.blocks)
    return Space(structure, strategy.micro_batch, _storage(problems, strategy, options), again)


def _stage_mesh(plan: Plan) -> Mesh:
    return dict(stage_meshes(plan.cluster))[plan.strategy.num_stages]


def _allowed(problems: LayoutProblems, plan: Plan, options: PlanOptions) -> Allowed | None:
    """What the plan's constraints leave of layouts; of several ways to have its degrees, one that the plan has."""
    strategy, mesh = plan.strategy, _stage_mesh(plan)
    degrees = Degrees(options.data_parallel, options.tensor_parallel)
    if not degrees:
        return problems.pins.on(mesh, strategy.mesh) if problems.pins else None
    ways = constrained(mesh, problems.pins, degrees, Roles(problems.graph))
    clusters = form_clusters(problems.bound(strategy.micro_batch), problems.network.cluster.mesh().split_counts)
    return next(allowed for view, allowed in ways if view == strategy.mesh and _admits(allowed, clusters, strategy))


def _admits(allowed: Allowed, clusters: Sequence[OpCluster], strategy: Strategy) -> bool:
    """Whether the strategy's layouts of the first op of each cluster are among those allowed."""

    def taken(cluster: OpCluster, axis: int, option: int) -> bool:
        own, chosen = strategy.signatures[cluster.name], cluster.options[option][0]
        ins, outs = (tuple(layout[axis] for layout in layouts) for layouts in (own.ins, own.outs))
        return (ins, outs) == (chosen.ins, chosen.outs) and allowed(cluster, axis, option)

    return all(
        any(taken(cluster, axis, option) for option in range(len(cluster.options)))
        for cluster in clusters
        for axis in range(strategy.mesh.ndim)
    )


def _storage(problems: LayoutProblems, strategy: Strategy, options: PlanOptions) -> str:
    """How the plan stores parameters: as asked for, else the way in which search would store most of them so."""
    if options.pins:
        return AS_USED
    if options.storage is not None:
        return options.storage
    if strategy.gather == "use":
        return USE
    wrong = {storage: _stored_otherwise(problems, strategy, storage) for storage in (FASTEST, STEP, AS_USED)}
    return min(wrong, key=lambda storage: wrong[storage])


def _stored_otherwise(problems: LayoutProblems, strategy: Strategy, storage: str) -> int:
    """Trained parameters that ``storage`` would not keep where the strategy does, given how it uses them."""
    graph = problems.bound(strategy.micro_batch)
    space = Space(Structure(strategy.num_stages, strategy.mesh), strategy.micro_batch, storage)
    stores, used, count = problems.stores(space), used_layouts(graph, strategy.signatures), 0
    for leaf in graph.trained:
        layout = used[leaf.name]
        if P not in layout:
            apart = storage != AS_USED and stores.splits(leaf.meta, layout, zone=problems.zones.of_parameter(leaf.name))
            wanted = split_storage(leaf, layout, strategy.mesh) if apart else layout
            count += strategy.parameters[leaf.name] != wanted
    return count
