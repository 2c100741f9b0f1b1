"""From a graph, a mesh and a cost model to a search problem (DESIGN section 8).

One variable per op cluster; one per shared boxed tensor, whose values are the layouts its readers may need; one per
parameter that several clusters read. Tables are made once per distinct class and shape, so repeated blocks share arrays.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.boxing import BoxingModel, BoxingTable
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.memory.libraries import held_bytes
from autosbp.distinct import distinct
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan import BUCKET_BYTES
from autosbp.sbp.groups import sends_gradient
from autosbp.sbp.placement import NdSbp, Sbp, without_invariants
from autosbp.search._base import Edge, SearchProblem
from autosbp.search.problem.analysis import Analysis, Joint, Read
from autosbp.search.problem.assembly import Allowed
from autosbp.search.problem.clusters import OpCluster
from autosbp.search.problem.domains import Domain, UnaryCosts, ValueCosts, make_domain
from autosbp.search.problem.dominance import Port, Sieve
from autosbp.search.problem.tied_parameters import TiedParameters
from autosbp.search.problem.weights import AS_USED, ZONES, Weights, shares_of

ClassCost = tuple[Domain, ValueCosts]
ROUNDING = 1e-9


@dataclass(frozen=True)
class Detail:
    """What the costs of each variable are made of, and where variables meet their edges; no value is left out."""

    parts: tuple[ValueCosts, ...]
    ports: Mapping[int, Sequence[Port]]


@dataclass(frozen=True)
class BuiltProblem:
    """A problem with what is needed to read an assignment back as layouts. The first variables are those of ``clusters``;
    ``anchors`` are the op or parameter that each variable belongs to; ``detail`` is there where builders know more than one
    way to store parameters."""

    problem: SearchProblem
    clusters: tuple[OpCluster, ...]
    domains: tuple[Domain, ...]
    parameter_variables: Mapping[str, tuple[int, tuple[NdSbp, ...]]]
    anchors: tuple[str, ...]
    detail: Detail | None = None


class ProblemBuilder:
    """Builds problems for one bound graph and mesh; baselines build restricted ones with the same tables.

    Args:
        graph: bound at the microbatch size.
        boxing: the boxing model of the mesh that layouts are chosen on.
        compute: op times.
        num_micro: microbatches per step.
        optimizer: ``adamw`` or ``sgd``.
        weights: how much seconds and bytes count; those of a step on all devices where there are none.
        storage: where parameters are kept, see ``UnaryCosts``.
        offload: the optimizer's state is on the host.
        bucket_bytes: the most that gradients are reduced in together.
        message: bytes that gradients travel in; those of the graph where there are none.
        tables: keeps edge costs, for builders that differ in nothing but storage.
        others: more ways to store parameters, of which problems tell the costs in ``detail``.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        boxing: BoxingModel,
        compute: ComputeModel,
        *,
        num_micro: int,
        optimizer: str,
        analysis: Analysis | None = None,
        weights: Weights | None = None,
        storage: str = AS_USED,
        message: int | None = None,
        tables: dict[Hashable, NDArray[np.float64]] | None = None,
        offload: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
        others: Sequence[str] = (),
    ) -> None:
        self.graph, self.boxing = graph, boxing
        self.tables = {} if tables is None else tables
        self.analysis, self.others = analysis or Analysis(graph, counts=boxing.mesh.split_counts), others
        self.weights = weights or Weights(float(num_micro))
        self.shares = {zone: shares_of(self.weights, boxing.mesh, zone) for zone in ZONES}
        self.class_costs: dict[int, tuple[Allowed | None, list[ClassCost]]] = {}
        self.unary = UnaryCosts(
            graph, compute, boxing, optimizer, num_micro, self.weights, storage, message,
            self.analysis.again, self.analysis.handed, self.analysis.zones.used(storage),
            offload=offload, bucket_bytes=bucket_bytes, others=others,
        )  # fmt: skip

    def least_memory(self, allowed: Allowed | None = None, copies: Sequence[int] | None = None) -> int:
        """Bytes that no layout goes below: the sum of every op's least, each cluster as often as ``copies`` says; raises
        ``InfeasibleError`` without even splits."""
        return _Assembly(self, None, allowed).least_memory(copies)

    def least_s(self, allowed: Allowed | None = None, copies: Sequence[int] | None = None) -> float:
        """Seconds that no assignment goes below: as ``least_memory``, each op the quickest, nothing boxed."""
        return _Assembly(self, None, allowed).least_s(copies)

    def build(
        self,
        memory_limit_bytes: int | None,
        allowed: Allowed | None = None,
        *,
        dominated: bool = False,
        slack_s: float = math.inf,
    ) -> BuiltProblem:
        """The problem over all layouts, or those that ``allowed`` admits, with which no op takes more than ``slack_s`` over its
        least; if ``dominated``, with those no optimum needs."""
        return _Assembly(self, memory_limit_bytes, allowed, slack_s).run(dominated)


@dataclass(frozen=True, slots=True)
class _SharedCopy:
    """The variable of a copy that several readers share: its costs, and its edges from the maker and to each reader."""

    costs: ValueCosts
    made: NDArray[np.float64]
    read: tuple[NDArray[np.float64], ...]


@dataclass(frozen=True, slots=True)
class _Joined:
    """What joints of a kind have in common: how their makers and readers meet it, and the edge between the one maker and the
    one reader, or the copy that several readers share."""

    made: Port
    reads: tuple[Port, ...]
    met: NDArray[np.float64] | _SharedCopy


class _Assembly(TiedParameters):
    def __init__(
        self, builder: ProblemBuilder, limit: int | None, allowed: Allowed | None, slack_s: float = math.inf
    ) -> None:
        super().__init__(builder, limit, allowed)
        self.slack_s = slack_s
        self._joined: dict[int, _Joined] = {}

    def run(self, dominated: bool) -> BuiltProblem:
        graph = self.graph
        domains = self._variables()
        for joint in self.analysis.joints:
            self._connect(joint, domains)
        tied = {
            name: users
            for name, users in self.analysis.parameters.items()
            if len(users) > 1 or name in self.analysis.stored
        }
        variables = {name: self._tied_parameter(name, users, domains) for name, users in tied.items()}
        problem = SearchProblem(
            tuple(self.names), tuple(self.unary), tuple(self.memory), tuple(self.edges), self.limit,
            fixed_memory_bytes=sum(leaf.meta.num_bytes for leaf in graph.data) + held_bytes(self.boxing.device.kind),
        )  # fmt: skip
        clusters = tuple(self.analysis.clusters)
        if self.builder.others:
            detail = Detail(tuple(self.parts), self.ports)
            return BuiltProblem(problem, clusters, tuple(domains), variables, tuple(self.anchors), detail)
        if not dominated:
            problem, domains = self._sifted(problem, domains)
        return BuiltProblem(problem, clusters, tuple(domains), variables, tuple(self.anchors))

    def _sifted(self, problem: SearchProblem, domains: list[Domain]) -> tuple[SearchProblem, list[Domain]]:
        """Without the values of clusters that no optimum needs."""
        sieve = Sieve()
        masks = [
            sieve.mask(self.unary[at], None if self.limit is None else self.memory[at], self.ports.get(at, ()))
            for at in range(len(domains))
        ]
        kept = [
            Domain(domain.cluster, domain.mesh, domain.rows[mask]) for domain, mask in zip(domains, masks, strict=True)
        ]
        return sieve.smaller(problem, [*masks, *[None] * (problem.num_variables - len(domains))]), kept

    def least_memory(self, copies: Sequence[int] | None) -> int:
        return int(self._sum([int(costs.memory.min()) for _, costs in self._class_costs()], copies))

    def least_s(self, copies: Sequence[int] | None) -> float:
        # Edges cost nothing at the least: what readers of one copy get back was paid to make it.
        return self._sum([float(costs.seconds.min()) for _, costs in self._class_costs()], copies)

    def _sum(self, least: Sequence[float], copies: Sequence[int] | None) -> float:
        """Over all clusters, of what each class has."""
        classes = self.analysis.class_of
        return sum(least[kind] * times for kind, times in zip(classes, copies or [1] * len(classes), strict=True))

    def _within_slack(self) -> list[ClassCost]:
        """Domain and costs of each class, less what is too slow by itself."""
        found = []
        for domain, costs in self._class_costs():
            fast = costs.seconds <= (costs.seconds.min() + self.slack_s) * (1 + ROUNDING)
            kept = Domain(domain.cluster, domain.mesh, domain.rows[fast]), costs.of(fast)
            found.append((domain, costs) if fast.all() else kept)
        return found

    def _class_costs(self) -> list[ClassCost]:
        """Domain, seconds and bytes of each class of clusters."""
        known, allowed = self.builder.class_costs, self.allowed
        if id(allowed) not in known:
            costs = []
            for kind in self.analysis.classes:
                domain = self._domain(kind.cluster)
                costs.append((domain, self.builder.unary.of(domain, kind.own, kind.carried)))
            known[id(allowed)] = (allowed, costs)  # kept alive, so that no other has its id
        return known[id(allowed)][1]

    def _variables(self) -> list[Domain]:
        """A variable per cluster; refuses early what cannot fit, by a bound that needs no edges."""
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

    def _connect(self, joint: Joint, domains: list[Domain]) -> None:
        """Edges from the maker of a value to its readers, through one shared copy where there are several."""
        if joint.kind not in self._joined:
            self._joined[joint.kind] = self._join(joint, domains)
        joined, maker = self._joined[joint.kind], joint.maker
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

    def _join(self, joint: Joint, domains: list[Domain]) -> _Joined:
        users = joint.reads
        again = users[0].node.name in self.analysis.again
        zone = self.builder.unary.zones.of_boxing(user.node.name for user in users)
        table = self._table(joint.ref, joint.label, zone, again=again)
        maker, made = domains[joint.maker], self._made(joint.maker, joint.ref, joint.label)
        port = self._port(table.ids(made, maker.rows), table, made=True)
        wanted = [table.ids(self._states(user), domains[user.cluster].rows) for user in users]
        if len(users) == 1:
            reader = domains[users[0].cluster]
            edge = self._boxing_table(maker, made, reader, self._states(users[0]), table)
            return _Joined(port, (self._port(wanted[0], table),), edge)
        copy = self._shared_copy(maker, made, users, wanted, table)
        return _Joined(port, tuple(self._port(ids, None) for ids in wanted), copy)

    def _made(self, maker: int, ref: Ref, label: str) -> tuple[Sbp, ...]:
        made = self.analysis.clusters[maker].output_states(ref)
        return made if sends_gradient(label) else without_invariants(made)

    def _shared_copy(
        self,
        maker: Domain,
        made: tuple[Sbp, ...],
        users: Sequence[Read],
        wanted: Sequence[NDArray[np.int64]],
        table: BoxingTable,
    ) -> _SharedCopy:
        """A copy that several readers share, in any of the layouts ``wanted``."""
        layouts = distinct(np.concatenate(wanted))
        split = np.array([self._local_bytes(table.layouts[at], table.num_bytes) for at in layouts])
        saved = any(self._keeps(user) for user in users)
        twice = saved and self.builder.unary.kept_by_maker(list(users[0].node.refs())[users[0].position])
        copy_key: Hashable = ("copy", id(table), layouts.tobytes(), saved, twice)
        if copy_key not in self._costs:
            weights = self.builder.weights
            kept = weights.working if users[0].node.name in self.analysis.again else weights.kept
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

    def _keeps(self, user: Read) -> bool:
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
