"""Builds a search problem from a graph, a mesh and a cost model.

There is one variable per op cluster; one per shared boxed tensor, whose values are the layouts its readers may need;
and one per parameter that several clusters read. Tables are built once per distinct class and shape, so repeated blocks
share arrays."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.boxing import BoxingModel, BoxingTable
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.memory.library_workspace import library_bytes
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan.plan import BUCKET_BYTES
from autosbp.program.shared_boxing import sends_gradient
from autosbp.sbp.layout import NdSbp, Sbp, invariant_as_replicated
from autosbp.search._base import Edge, SearchProblem
from autosbp.search.problem.builder_base import Allowed
from autosbp.search.problem.cost_weights import UNSHARDED, ZONES, CostWeights, shares_of
from autosbp.search.problem.domains import Domain, UnaryCosts, ValueCosts, make_domain
from autosbp.search.problem.dominance import DominanceFilter, EdgePort
from autosbp.search.problem.graph_analysis import BoxedValue, ClusterRead, GraphAnalysis
from autosbp.search.problem.op_clusters import OpCluster
from autosbp.search.problem.tied_parameters import TiedParameters
from autosbp.utils.arrays import unique_ints

ClassCost = tuple[Domain, ValueCosts]
ROUNDING = 1e-9


@dataclass(frozen=True)
class CostDetail:
    """Cost components of each variable, and the ports where variables meet their edges; covers all values."""

    parts: tuple[ValueCosts, ...]
    ports: Mapping[int, Sequence[EdgePort]]


@dataclass(frozen=True)
class BuiltProblem:
    """A problem with what is needed to turn an assignment into layouts.

    The first variables are those of ``clusters``. ``anchors`` has the op or parameter that each variable belongs to.
    ``detail`` is present if the builder knows more than one parameter sharding."""

    problem: SearchProblem
    clusters: tuple[OpCluster, ...]
    domains: tuple[Domain, ...]
    parameter_variables: Mapping[str, tuple[int, tuple[NdSbp, ...]]]
    anchors: tuple[str, ...]
    detail: CostDetail | None = None


class ProblemBuilder:
    """Builds problems for one bound graph and mesh; baselines build restricted ones with the same tables.

    Args:
        graph: bound at the microbatch size.
        boxing: the boxing model of the mesh that layouts are chosen on.
        compute: op times.
        num_micro: microbatches per step.
        optimizer: ``adamw`` or ``sgd``.
        weights: of seconds and bytes; by default those of a step on all devices.
        storage: parameter sharding, see ``ParameterCosts``.
        message: bytes of a gradient message; by default derived from the graph.
        tables: cache of edge costs, for builders that differ only in ``storage``.
        offload: the optimizer's state is on the host.
        bucket_bytes: maximum gradient bucket size.
        others: further parameter shardings, whose costs ``detail`` holds.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        boxing: BoxingModel,
        compute: ComputeModel,
        *,
        num_micro: int,
        optimizer: str,
        analysis: GraphAnalysis | None = None,
        weights: CostWeights | None = None,
        storage: str = UNSHARDED,
        message: int | None = None,
        tables: dict[Hashable, NDArray[np.float64]] | None = None,
        offload: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
        others: Sequence[str] = (),
    ) -> None:
        self.graph, self.boxing = graph, boxing
        self.tables = {} if tables is None else tables
        self.analysis, self.others = analysis or GraphAnalysis(graph, counts=boxing.mesh.split_counts), others
        self.weights = weights or CostWeights(float(num_micro))
        self.shares = {zone: shares_of(self.weights, boxing.mesh, zone) for zone in ZONES}
        self.class_costs: dict[int, tuple[Allowed | None, list[ClassCost]]] = {}
        self.unary = UnaryCosts(
            graph, compute, boxing, optimizer, num_micro, self.weights, storage, message,
            self.analysis.again, self.analysis.segment_inputs, self.analysis.zones.used(storage),
            offload=offload, bucket_bytes=bucket_bytes, others=others,
        )  # fmt: skip

    def least_memory(self, allowed: Allowed | None = None, copies: Sequence[int] | None = None) -> int:
        """Lower bound on memory in bytes: the sum of every op's least, with each cluster counted ``copies`` times.

        Raises:
            InfeasibleError: no even split.
        """
        return _Assembly(self, None, allowed).least_memory(copies)

    def least_s(self, allowed: Allowed | None = None, copies: Sequence[int] | None = None) -> float:
        """Lower bound on seconds: as ``least_memory``, each op the fastest and nothing boxed."""
        return _Assembly(self, None, allowed).least_s(copies)

    def build(
        self,
        memory_limit_bytes: int | None,
        allowed: Allowed | None = None,
        *,
        dominated: bool = False,
        slack_s: float = math.inf,
    ) -> BuiltProblem:
        """The problem over all layouts, or those that ``allowed`` admits.

        Args:
            memory_limit_bytes: None for no limit.
            dominated: keep values that no optimum needs.
            slack_s: drop values that take more than this over an op's least seconds.
        """
        return _Assembly(self, memory_limit_bytes, allowed, slack_s).run(dominated)


@dataclass(frozen=True, slots=True)
class _SharedCopy:
    """The variable of a copy that several readers share: its costs, and its edges from the maker and to each reader."""

    costs: ValueCosts
    made: NDArray[np.float64]
    read: tuple[NDArray[np.float64], ...]


@dataclass(frozen=True, slots=True)
class _BoxingEdge:
    """What boxed values of one kind share.

    ``made`` and ``reads`` are the ports of the maker and of the readers. ``met`` is the edge between the maker and a
    single reader, or the copy that several readers share."""

    made: EdgePort
    reads: tuple[EdgePort, ...]
    met: NDArray[np.float64] | _SharedCopy


class _Assembly(TiedParameters):
    builder: ProblemBuilder

    def __init__(
        self, builder: ProblemBuilder, limit: int | None, allowed: Allowed | None, slack_s: float = math.inf
    ) -> None:
        super().__init__(builder, limit, allowed)
        self.slack_s = slack_s
        self._joined: dict[int, _BoxingEdge] = {}

    def run(self, dominated: bool) -> BuiltProblem:
        graph = self.graph
        domains = self._variables()
        for joint in self.analysis.boxed_values:
            self._connect(joint, domains)
        tied = {
            name: users
            for name, users in self.analysis.parameters.items()
            if len(users) > 1 or name in self.analysis.stored
        }
        variables = {name: self._tied_parameter(name, users, domains) for name, users in tied.items()}
        problem = SearchProblem(
            tuple(self.names), tuple(self.unary), tuple(self.memory), tuple(self.edges), self.limit,
            fixed_memory_bytes=sum(leaf.meta.num_bytes for leaf in graph.data) + library_bytes(self.boxing.device.kind),
        )  # fmt: skip
        clusters = tuple(self.analysis.clusters)
        if self.builder.others:
            detail = CostDetail(tuple(self.parts), self.ports)
            return BuiltProblem(problem, clusters, tuple(domains), variables, tuple(self.anchors), detail)
        if not dominated:
            problem, domains = self._without_dominated(problem, domains)
        return BuiltProblem(problem, clusters, tuple(domains), variables, tuple(self.anchors))

    def _without_dominated(self, problem: SearchProblem, domains: list[Domain]) -> tuple[SearchProblem, list[Domain]]:
        """The problem without dominated values of clusters."""
        sieve = DominanceFilter()
        masks = [
            sieve.mask(self.unary[at], None if self.limit is None else self.memory[at], self.ports.get(at, ()))
            for at in range(len(domains))
        ]
        kept = [
            Domain(domain.cluster, domain.mesh, domain.rows[mask]) for domain, mask in zip(domains, masks, strict=True)
        ]
        return sieve.reduce(problem, [*masks, *[None] * (problem.num_variables - len(domains))]), kept

    def least_memory(self, copies: Sequence[int] | None) -> int:
        return int(self._sum([int(costs.memory.min()) for _, costs in self._class_costs()], copies))

    def least_s(self, copies: Sequence[int] | None) -> float:
        # The least cost of edges is 0: refunds to readers of a shared copy were paid to make it.
        return self._sum([float(costs.seconds.min()) for _, costs in self._class_costs()], copies)

    def _sum(self, least: Sequence[float], copies: Sequence[int] | None) -> float:
        """Sum over all clusters of the values of their classes."""
        classes = self.analysis.class_of
        return sum(least[kind] * times for kind, times in zip(classes, copies or [1] * len(classes), strict=True))

    def _within_slack(self) -> list[ClassCost]:
        """Domain and costs of each class, without values that are too slow by themselves."""
        found = []
        for domain, costs in self._class_costs():
            fast = costs.seconds <= (costs.seconds.min() + self.slack_s) * (1 + ROUNDING)
            kept = Domain(domain.cluster, domain.mesh, domain.rows[fast]), costs.of(fast)
            found.append((domain, costs) if fast.all() else kept)
        return found

    def _class_costs(self) -> list[ClassCost]:
        """Domain and costs of each class of clusters."""
        known, allowed = self.builder.class_costs, self.allowed
        if id(allowed) not in known:
            costs = []
            for kind in self.analysis.classes:
                domain = self._domain(kind.cluster)
                costs.append((domain, self.builder.unary.of(domain, kind.own, kind.shared_reads)))
            known[id(allowed)] = (allowed, costs)  # kept alive, so that no other object gets its id
        return known[id(allowed)][1]

    def _variables(self) -> list[Domain]:
        """Add a variable per cluster; fails early if memory cannot suffice, by a bound that needs no edges."""
        costs = self._within_slack() if self.slack_s < math.inf else self._class_costs()
        domains = []
        for cluster, kind in zip(self.analysis.clusters, self.analysis.class_of, strict=True):
            domain, own = costs[kind]
            domains.append(Domain(cluster, domain.mesh, domain.rows))
            self._variable(cluster.name, own, cluster.name)
        least = sum(int(use.min()) for use in self.memory)
        if self.limit is not None and least > self.limit:
            detail = "even the least memory of every op does not fit"
            raise InfeasibleError("memory_limit_bytes", self.limit, least, detail)
        return domains

    def _domain(self, cluster: OpCluster) -> Domain:
        allowed = self.allowed
        admit = None if allowed is None else lambda axis, option: allowed(cluster, axis, option)
        domain = make_domain(cluster, self.boxing.mesh, admit)
        if len(domain.rows) == 0:
            size = self.graph.inputs[0].meta.sizes[0]
            detail = f"no even split of {cluster.name} over {self.boxing.mesh.shape}"
            raise InfeasibleError("micro_batch", size, None, detail)
        return domain

    def _connect(self, joint: BoxedValue, domains: list[Domain]) -> None:
        """Add edges from the maker of a value to its readers, through one shared copy if there are several."""
        if joint.kind not in self._joined:
            self._joined[joint.kind] = self._boxing_edge(joint, domains)
        joined, maker = self._joined[joint.kind], joint.producer
        self.ports.setdefault(maker, []).append(joined.made)
        for user, port in zip(joint.reads, joined.reads, strict=True):
            self.ports.setdefault(user.cluster, []).append(port)
        if not isinstance(joined.met, _SharedCopy):
            self.edges.append(Edge(maker, joint.reads[0].cluster, joined.met))
            return
        shared = joined.met
        copy = self._variable(f"{joint.ref.name}@{joint.label}", shared.costs, joint.ref.name)
        self.edges.append(Edge(maker, copy, shared.made))
        for user, read in zip(joint.reads, shared.read, strict=True):
            self.edges.append(Edge(copy, user.cluster, read))

    def _boxing_edge(self, joint: BoxedValue, domains: list[Domain]) -> _BoxingEdge:
        users = joint.reads
        again = users[0].node.name in self.analysis.again
        zone = self.builder.unary.zones.of_boxing(user.node.name for user in users)
        table = self._table(joint.ref, joint.label, zone, again=again)
        maker, made = domains[joint.producer], self._output_states(joint.producer, joint.ref, joint.label)
        port = self._port(table.ids(made, maker.rows), table, made=True)
        wanted = [table.ids(self._states(user), domains[user.cluster].rows) for user in users]
        if len(users) == 1:
            reader = domains[users[0].cluster]
            edge = self._boxing_table(maker, made, reader, self._states(users[0]), table)
            return _BoxingEdge(port, (self._port(wanted[0], table),), edge)
        copy = self._shared_copy(maker, made, users, wanted, table)
        return _BoxingEdge(port, tuple(self._port(ids, None) for ids in wanted), copy)

    def _output_states(self, maker: int, ref: Ref, label: str) -> tuple[Sbp, ...]:
        made = self.analysis.clusters[maker].output_states(ref)
        return made if sends_gradient(label) else invariant_as_replicated(made)

    def _shared_copy(
        self,
        maker: Domain,
        made: tuple[Sbp, ...],
        users: Sequence[ClusterRead],
        wanted: Sequence[NDArray[np.int64]],
        table: BoxingTable,
    ) -> _SharedCopy:
        """A copy that several readers share, in any of the layouts ``wanted``."""
        layouts = unique_ints(np.concatenate(wanted))
        split = np.array([self._local_bytes(table.layouts[at], table.num_bytes) for at in layouts])
        saved = any(self._is_saved_for_backward(user) for user in users)
        twice = saved and self.builder.unary.is_saved_by_producer(list(users[0].node.refs())[users[0].position])
        copy_key: Hashable = ("copy", id(table), layouts.tobytes(), saved, twice)
        if copy_key not in self._costs:
            weights = self.builder.weights
            kept = weights.segment_internals if users[0].node.name in self.analysis.again else weights.kept
            memory, none = kept * split * saved, np.zeros(len(layouts))
            self._costs[copy_key] = ValueCosts(none, np.ceil(memory).astype(np.int64), memory * (not twice), ())
        key: Hashable = ("made", id(table), maker.rows.tobytes(), made, layouts.tobytes())
        if key not in self._tables:
            self._tables[key] = self._between(table, table.ids(made, maker.rows), layouts)
        equal = []
        for ids in wanted:
            same: Hashable = ("equal", layouts.tobytes(), ids.tobytes())
            if same not in self._tables:
                self._tables[same] = np.where(layouts[:, None] == ids[None, :], 0.0, np.inf)
            equal.append(self._tables[same])
        return _SharedCopy(self._costs[copy_key], self._tables[key], tuple(equal))

    def _is_saved_for_backward(self, user: ClusterRead) -> bool:
        from autosbp.costmodel.memory import saved_inputs

        return user.position in saved_inputs(self.graph, user.node)

    def _boxing_table(
        self, maker: Domain, made: tuple[Sbp, ...], reader: Domain, wanted: tuple[Sbp, ...], table: BoxingTable
    ) -> NDArray[np.float64]:
        key = (id(table), maker.rows.tobytes(), made, reader.rows.tobytes(), wanted)
        if key not in self._tables:
            ids = table.ids(made, maker.rows), table.ids(wanted, reader.rows)
            self._tables[key] = self._between(table, *ids)
        return self._tables[key]
