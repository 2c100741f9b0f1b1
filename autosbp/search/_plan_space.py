"""The space that a plan was found in: stages, mesh, microbatch and storage as the plan has them, layouts free again."""

from __future__ import annotations

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan, Strategy
from autosbp.sbp.placement import P
from autosbp.sbp.storage import split_storage
from autosbp.search._layouts import LayoutProblems, Space, Structure
from autosbp.search._strategy import used_layouts
from autosbp.search._weights import AS_USED, FASTEST, STEP, USE
from autosbp.search.pinned import Pins, read_pins
from autosbp.search.plan_options import PlanOptions


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
    return LayoutProblems(
        graph, NetworkModel(cluster, calibration), ComputeModel(cluster.device, calibration),
        global_batch=strategy.global_batch, optimizer=strategy.optimizer, pins=_pins(graph, cluster, options),
    )  # fmt: skip


def plan_space(problems: LayoutProblems, plan: Plan, options: PlanOptions) -> Space:
    """The plan's own space; what was pinned stays so."""
    strategy = plan.strategy
    pins = problems.pins.on(plan.cluster.mesh(), strategy.mesh) if problems.pins else None
    structure = Structure(strategy.num_stages, strategy.mesh, pins)
    return Space(structure, strategy.micro_batch, _storage(problems, strategy, options))


def _pins(graph: LogicalGraph, cluster: Cluster, options: PlanOptions) -> Pins:
    return read_pins(graph, cluster.mesh(), options.pins)


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
            apart = storage != AS_USED and stores.splits(leaf.meta, layout)
            wanted = split_storage(leaf, layout, strategy.mesh) if apart else layout
            count += strategy.parameters[leaf.name] != wanted
    return count
