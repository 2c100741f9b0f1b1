"""Subproblem of an existing plan: its stages, mesh, microbatch and parameter sharding, with free layouts."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import planned_graph
from autosbp.plan.plan import Plan, Strategy
from autosbp.program.parameter_sharding import sharded_layout
from autosbp.sbp.layout import P
from autosbp.sbp.mesh import Mesh
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.baselines import Roles
from autosbp.search.problem.builder_base import Allowed
from autosbp.search.problem.cost_weights import FASTEST, GATHER_PER_STEP, GATHER_PER_USE, UNSHARDED
from autosbp.search.problem.op_clusters import OpCluster, form_clusters
from autosbp.search.problem.parallel_degrees import ParallelDegrees, constrained_views, reading_as_stored
from autosbp.search.problem.pins import read_pins
from autosbp.search.problem.strategy import used_layouts
from autosbp.search.stages.layout_problems import LayoutProblems, PipelineStructure, SubproblemKey
from autosbp.search.stages.stage_meshes import stage_meshes


def checked_sources(graph: LogicalGraph, plan: Plan, calibration: Calibration | None) -> LogicalGraph:
    """The graph in the plan's precision, after checks that the plan was made from it and from the calibration.

    Raises:
        InputError: ``graph`` or ``calibration``.
    """
    graph = planned_graph(graph, plan.document)
    wanted = plan.document["provenance"].get("calibration_id")
    given = None if calibration is None else calibration.calibration_id
    if given != wanted:
        limit = (
            f"expected the plan's calibration {wanted}" if wanted else ("expected none: the plan was made without one")
        )
        raise InputError("calibration", given, limit)
    return graph


def plan_problems(
    graph: LogicalGraph, plan: Plan, options: PlanOptions, calibration: Calibration | None
) -> LayoutProblems:
    """The layout problems of the plan's batch and optimizer.

    Raises:
        InputError: the plan has pipeline stages on groups of unlike devices.
    """
    cluster, strategy = plan.cluster, plan.strategy
    if cluster.groups and strategy.pipeline:
        raise InputError("plan", plan.plan_id, "expected a plan whose stages have identical devices")
    return LayoutProblems(
        graph, NetworkModel(cluster, calibration), ComputeModel(cluster.device, calibration),
        global_batch=strategy.global_batch, optimizer=strategy.optimizer,
        pins=read_pins(graph, _stage_mesh(plan), options.pins), offload=strategy.offload,
        sizes=(strategy.bucket_bytes,), schedules=options.schedules,
    )  # fmt: skip


def plan_subproblem(problems: LayoutProblems, plan: Plan, options: PlanOptions) -> SubproblemKey:
    """The plan's own subproblem, with its pins and parallel degrees."""
    strategy = plan.strategy
    allowed = _allowed(problems, plan, options)
    if options.storage == UNSHARDED and not problems.pins:
        allowed = reading_as_stored(allowed)
    structure = PipelineStructure(strategy.num_stages, strategy.mesh, allowed)
    again = bool(strategy.recompute and problems.blocks)
    return SubproblemKey(structure, strategy.micro_batch, _storage(problems, strategy, options), again)


def _stage_mesh(plan: Plan) -> Mesh:
    return dict(stage_meshes(plan.cluster))[plan.strategy.num_stages]


def _allowed(problems: LayoutProblems, plan: Plan, options: PlanOptions) -> Allowed | None:
    """Layouts that the plan's constraints allow; None if there are no constraints.

    Parallel degrees may fit several assignments of mesh axes; the result is one that admits the plan.
    """
    strategy, mesh = plan.strategy, _stage_mesh(plan)
    degrees = ParallelDegrees(options.data_parallel, options.tensor_parallel)
    if not degrees:
        return problems.pins.on(mesh, strategy.mesh) if problems.pins else None
    ways = constrained_views(mesh, problems.pins, degrees, Roles(problems.graph))
    clusters = form_clusters(problems.bound(strategy.micro_batch), problems.network.cluster.mesh().split_counts)
    return next(allowed for view, allowed in ways if view == strategy.mesh and _admits(allowed, clusters, strategy))


def _admits(allowed: Allowed, clusters: Sequence[OpCluster], strategy: Strategy) -> bool:
    """Whether the layouts of the first op of each cluster are all allowed."""

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
    """The plan's parameter sharding: as requested, else the one that agrees with most of its parameters."""
    if options.pins:
        return UNSHARDED
    if options.storage is not None:
        return options.storage
    if strategy.gather == "use":
        return GATHER_PER_USE
    wrong = {
        storage: _num_differently_stored(problems, strategy, storage)
        for storage in (FASTEST, GATHER_PER_STEP, UNSHARDED)
    }
    return min(wrong, key=lambda storage: wrong[storage])


def _num_differently_stored(problems: LayoutProblems, strategy: Strategy, storage: str) -> int:
    """Number of trained parameters whose stored layout differs under the sharding ``storage``, given their use."""
    graph = problems.bound(strategy.micro_batch)
    space = SubproblemKey(PipelineStructure(strategy.num_stages, strategy.mesh), strategy.micro_batch, storage)
    stores, used, count = problems.parameter_costs(space), used_layouts(graph, strategy.signatures), 0
    for leaf in graph.trained:
        layout = used[leaf.name]
        if P not in layout:
            apart = storage != UNSHARDED and stores.is_stored_split(
                leaf.meta, layout, zone=problems.zones.of_parameter(leaf.name)
            )
            wanted = sharded_layout(leaf, layout, strategy.mesh) if apart else layout
            count += strategy.parameters[leaf.name] != wanted
    return count
