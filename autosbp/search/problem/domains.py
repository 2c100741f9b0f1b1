"""Domains and unary costs of op clusters, vectorised over every combination of axis options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel, op_key, with_local_attributes
from autosbp.costmodel.float8 import roofline_work
from autosbp.costmodel.memory import saved_inputs, saves_output, workspace_bytes
from autosbp.costmodel.network import level_of
from autosbp.costmodel.pipeline_cost import WGRAD_SHARE
from autosbp.costmodel.split_ops import internal_collectives
from autosbp.graph.ir import FLOAT8, LogicalGraph, Node, Ref
from autosbp.plan.plan import BUCKET_BYTES
from autosbp.program.deferred_wgrad import LINEAR
from autosbp.program.gradient_buckets import bucket_message_bytes
from autosbp.sbp.layout import I, NdSbp, Sbp
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import sharding_of
from autosbp.search.problem.cost_weights import (
    GATHER_PER_USE,
    UNSHARDED,
    CostWeights,
    OverlapFactors,
    OverlapMultipliers,
)
from autosbp.search.problem.layout_table import LayoutTables, Rows, split_product
from autosbp.search.problem.op_clusters import OpCluster
from autosbp.search.problem.overlap_zones import OverlapZones
from autosbp.search.problem.parameter_costs import ParameterCosts, StorageCosts, zero_storage_costs

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Domain:
    """All values of one cluster class on one mesh; ``rows[i, axis]`` is the option of value i on the axis."""

    cluster: OpCluster
    mesh: Mesh
    rows: Rows

    def layout(self, value: int, states: Sequence[Sbp]) -> NdSbp:
        """Layout that ``value`` gives a tensor with these states per option."""
        return tuple(states[option] for option in self.rows[value])

    def split_product(self, splits: Sequence[bool]) -> Floats:
        """Per value, the product of the sizes of the axes whose option splits; read-only."""
        key = tuple(splits)
        if key not in self._products:
            self._products[key] = split_product(self.mesh, self.rows, key)
            self._products[key].flags.writeable = False
        return self._products[key]

    @cached_property
    def _products(self) -> dict[tuple[bool, ...], Floats]:
        return {}


def make_domain(cluster: OpCluster, mesh: Mesh, allowed: Callable[[int, int], bool] | None = None) -> Domain:
    """Every combination of options in which all splits are even; ``allowed(axis, option)`` restricts it (baselines)."""
    rows = _combinations(
        tuple(
            tuple(option for option in range(len(cluster.options)) if allowed is None or allowed(axis, option))
            for axis in range(mesh.ndim)
        )
    )
    keep = np.ones(len(rows), dtype=bool)
    sizes = np.array([axis.size for axis in mesh.axes], dtype=np.int64)
    for option, extent in enumerate(cluster.sizes):
        if extent:
            parts = np.where(rows == option, sizes, 1).prod(axis=1)
            keep &= extent % parts == 0
    return Domain(cluster, mesh, rows[keep])


@lru_cache(maxsize=256)
def _combinations(choices: tuple[tuple[int, ...], ...]) -> Rows:
    """Cartesian product of the choices [value, axis]; read-only."""
    rows = np.array(list(product(*choices)), dtype=np.int64).reshape(prod(map(len, choices)), len(choices))
    rows.flags.writeable = False
    return rows


class OpSeconds(NamedTuple):
    """Least seconds of an op over all layouts: forward, backward, and the part of backward that a schedule may defer."""

    forward_s: float
    backward_s: float
    deferred_wgrad_s: float


@dataclass(frozen=True, slots=True)
class ValueCosts:
    """Costs per value of a variable.

    ``seconds`` and ``memory`` are weighted, of a step. Of that memory, ``kept`` are the bytes that a microbatch saves,
    without those that another variable may also count and without parameters. ``stored`` are the costs of its
    parameters, per parameter sharding. ``ops`` are the unweighted least seconds of each op, in order."""

    seconds: Floats
    memory: NDArray[np.int64]
    kept: Floats
    stored: tuple[StorageCosts, ...]
    ops: tuple[OpSeconds, ...] = ()

    @property
    def forward_s(self) -> float:
        return sum(op.forward_s for op in self.ops)

    @property
    def backward_s(self) -> float:
        return sum(op.backward_s for op in self.ops)

    @property
    def deferred_wgrad_s(self) -> float:
        return sum(op.deferred_wgrad_s for op in self.ops)

    def of(self, mask: NDArray[np.bool_]) -> ValueCosts:
        """The costs of the values in ``mask``."""
        stored = tuple(each.of(mask) for each in self.stored)
        return replace(self, seconds=self.seconds[mask], memory=self.memory[mask], kept=self.kept[mask], stored=stored)


class UnaryCosts:
    """Seconds and bytes of each value of a domain: compute, internal collectives, parameters, activations.

    Args:
        message: bytes of a gradient message; by default derived from the graph and ``bucket_bytes``.
        again: checkpointed ops.
        handed: values that checkpointed segments read from elsewhere.
        offload: optimizer state is on the host.
        bucket_bytes: maximum gradient bucket size.
        others: further parameter shardings whose costs ``ValueCosts.stored`` lists after that of ``storage``.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        compute: ComputeModel,
        boxing: BoxingModel,
        optimizer: str,
        num_micro: int,
        weights: CostWeights | None = None,
        storage: str = UNSHARDED,
        message: int | None = None,
        again: Collection[str] = (),
        handed: Collection[Ref] = (),
        zones: OverlapZones | None = None,
        *,
        offload: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
        others: Sequence[str] = (),
    ) -> None:
        self.zones = OverlapZones() if zones is None else zones
        self.graph, self.compute, self.boxing = graph, compute, boxing
        self.again, self.segment_inputs = again, handed
        self.num_micro, self.weights = num_micro, weights or CostWeights(float(num_micro))
        self.nodes = {node.name: node for node in graph.nodes}
        self.trained = frozenset(leaf.name for leaf in graph.trained)
        message = bucket_message_bytes(graph, bucket_bytes) if message is None else message
        placings = LayoutTables(boxing.mesh)
        self.sharding_costs = [
            ParameterCosts(
                compute, boxing, optimizer, num_micro, self._weights_of(way), way, message,
                offload=offload, bucket_bytes=bucket_bytes, placings=placings,
            )
            for way in (storage, *others)
        ]  # fmt: skip
        self.main_parameter_costs = self.sharding_costs[0]

    def _weights_of(self, storage: str) -> CostWeights:
        """Weights for one parameter sharding.

        Where ops are weighted by messages that overlap once a step, messages of every pass (``use``) must not count as
        overlapped."""
        found = self.weights.multipliers
        if found is None or storage != GATHER_PER_USE or self.weights.passes == self.weights.micro:
            return self.weights
        return replace(
            self.weights,
            multipliers=OverlapMultipliers(OverlapFactors(), OverlapFactors(), found.level, found.slowdown),
        )

    def of(self, domain: Domain, own: frozenset[str], shared_reads: frozenset[Ref]) -> ValueCosts:
        """Costs of each value.

        Args:
            own: parameters that only this cluster reads.
            shared_reads: boxed tensors whose memory another variable counts.
        """
        weights = self.weights
        seconds = np.zeros(len(domain.rows))
        kept, twice = np.zeros((2, len(domain.rows)))
        stored = [zero_storage_costs(len(domain.rows)) for _ in self.sharding_costs]
        saved: set[tuple[Ref, tuple[Sbp, ...]]] = set()
        ops: list[OpSeconds] = []
        for at, node in enumerate(domain.cluster.nodes):
            ahead, back = self._compute_s(domain, node, at)
            zone, read_in = self.zones.op_zone(node.name), self.zones.reads_zone(node.name)
            seconds += weights.forward(zone) * ahead + weights.backward(zone) * back
            if node.name in self.again:
                seconds += weights.backward(zone) * ahead
            least = float(back.min())
            ops.append(OpSeconds(float(ahead.min()), least, WGRAD_SHARE * least * (node.op == LINEAR)))
            seconds += self._internal_s(domain, node, at)
            weight = weights.segment_internals if node.name in self.again else weights.kept
            for ref, states in self._saved(domain.cluster, node, shared_reads):
                if (ref, states) not in saved:
                    saved.add((ref, states))
                    size = weight * self._local_bytes(domain, ref, states)
                    kept += size
                    twice += size * (ref.name != node.name and self.is_saved_by_producer(ref))
            if node.rule and self.graph.rules[node.rule].workspace:
                kept += weight * self._workspace_bytes(domain, node)
            for ref in (Ref(node.name, index) for index in range(len(node.outputs) if self.segment_inputs else 0)):
                if ref in self.segment_inputs:
                    kept += weights.segment_inputs * self._local_bytes(domain, ref, domain.cluster.output_states(ref))
            for position, ref in enumerate(node.refs()):
                if ref.name in own:
                    states = domain.cluster.input_states(node.name, position)
                    meta, trains = self.graph.meta(ref), ref.name in self.trained
                    stored = [
                        before.plus(way.of(meta, trains, domain.rows, states, zone=read_in))
                        for way, before in zip(self.sharding_costs, stored, strict=True)
                    ]
            if node.name == self.graph.loss.name:
                seconds += self._loss_s(domain)
        total = seconds + stored[0].seconds
        memory = np.ceil(kept + stored[0].memory).astype(np.int64)
        return ValueCosts(total, memory, kept - twice, tuple(stored), tuple(ops))

    def is_saved_by_producer(self, ref: Ref) -> bool:
        """Whether the op that computed this value, or the value that it views, saves it: it must not count twice."""
        node = self.nodes.get(ref.name)
        while node is not None and sharding_of(self.graph, node).free:
            node = next((self.nodes[source.name] for source in node.refs() if source.name in self.nodes), None)
        return node is not None and saves_output(self.graph, node)

    def _local_bytes(self, domain: Domain, ref: Ref, states: Sequence[Sbp]) -> Floats:
        return self.graph.meta(ref).num_bytes / domain.split_product([sbp.is_split for sbp in states])

    def _workspace_bytes(self, domain: Domain, node: Node) -> Floats:
        """Bytes saved in addition to tensors of the graph, by the local sizes of the inputs."""
        metas = [self.graph.meta(ref) for ref in node.refs()]
        states = [domain.cluster.input_states(node.name, position) for position in range(len(metas))]
        dims = [[sbp.dim if sbp.is_split else -1 for sbp in each] for each in states]
        sizes = [axis.size for axis in domain.mesh.axes]
        found = [
            workspace_bytes(
                self.graph,
                node,
                [_local(meta.sizes, [own[at] for at in row], sizes) for meta, own in zip(metas, dims, strict=True)],
            )
            for row in domain.rows
        ]
        return np.array(found, dtype=np.float64)

    def parameter(self, rows: Rows, states: Sequence[Sbp], ref: Ref) -> StorageCosts:
        """Costs of a parameter used, and stored, in ``states``, see ``ParameterCosts.of``."""
        zone, trains = self.zones.of_parameter(ref.name), ref.name in self.trained
        return self.main_parameter_costs.of(self.graph.meta(ref), trains, rows, states, UNSHARDED, zone=zone)

    def _compute_s(self, domain: Domain, node: Node, at: int) -> tuple[Floats, Floats]:
        """Forward and backward seconds per value."""
        sharding = sharding_of(self.graph, node)
        if sharding.free:
            return np.zeros(len(domain.rows)), np.zeros(len(domain.rows))
        cluster = domain.cluster
        work = domain.split_product([option[at].divides for option in cluster.options])
        work = work / (2 - 1 / domain.split_product([option[at].skewed for option in cluster.options]))
        ins = [
            self._local_bytes(domain, ref, cluster.input_states(node.name, position))
            for position, ref in enumerate(node.refs())
        ]
        outs = [
            self._local_bytes(domain, ref, cluster.output_states(ref))
            for ref in (Ref(node.name, index) for index in range(len(node.outputs)))
        ]
        moved = roofline_work(self.graph, node, ins, outs)
        forward, backward = self.compute.roofline_s(
            node.op, moved.dtype, sharding.flops / work, moved.num_bytes, sharding.launches, moved.scaling_bytes
        )
        if self.compute.measured and moved.dtype != FLOAT8:
            times = [self.compute.measured.get(key) for key in self.op_keys(domain, node, at)]
            known = np.array([time is not None for time in times])
            forward = np.where(known, [0.0 if time is None else time.forward_s for time in times], forward)
            backward = np.where(known, [0.0 if time is None else time.backward_s for time in times], backward)
        return forward, backward

    def op_keys(self, domain: Domain, node: Node, at: int) -> list[str]:
        """Key of the timed op of each value (``costmodel.compute.op_key``); ``""`` if a split implementation runs instead."""
        cluster, graph = domain.cluster, self.graph
        refs = list(node.refs())
        metas = [graph.meta(ref) for ref in refs]
        in_parts = [
            [[sbp.dim if sbp.is_split else -1 for sbp in cluster.input_states(node.name, position)]]
            for position in range(len(refs))
        ]
        out_states = cluster.output_states(Ref(node.name))
        dtypes = [meta.dtype for meta in metas]
        grads = [graph.has_gradient(ref) for ref in refs]
        highs = [_index_bound(graph, ref) for ref in refs]
        sizes = [axis.size for axis in domain.mesh.axes]
        cache: dict[tuple[object, ...], str] = {}
        divided = [option[at].divided for option in cluster.options]
        keys = []
        for row in domain.rows:
            ins = tuple(
                _local(meta.sizes, [in_parts[position][0][option] for option in row], sizes)
                for position, meta in enumerate(metas)
            )
            out = _local(
                node.outputs[0].sizes,
                [out_states[option].dim if out_states[option].is_split else -1 for option in row],
                sizes,
            )
            split = any(cluster.options[option][at].needs_split_impl for option in row)
            paths = tuple((path, size) for option, size in zip(row, sizes, strict=True) for path in divided[option])
            if (ins, out, split, paths) not in cache:
                local = with_local_attributes(node, paths)
                cache[ins, out, split, paths] = "" if split else op_key(local, ins, out, dtypes, grads, highs)
            keys.append(cache[ins, out, split, paths])
        return keys

    def _internal_s(self, domain: Domain, node: Node, at: int) -> Floats:
        options = [option[at] for option in domain.cluster.options]
        splits = [option.needs_split_impl for option in options]
        seconds = np.zeros(len(domain.rows))
        if not any(splits):
            return seconds
        mesh, network = domain.mesh, self.boxing.network
        for value in np.nonzero(np.array(splits)[domain.rows].any(axis=1))[0]:
            choices = [options[option] for option in domain.rows[value]]
            for call in internal_collectives(self.graph, node, choices, mesh):
                shape = mesh.group_shape(call.axes)
                ahead, back = self.weights.messages(level_of(shape), self.zones.op_zone(node.name))
                weight = ahead if call.phase == "forward" else back
                weight += back if call.phase == "forward" and node.name in self.again else 0.0
                seconds[value] += weight * network.time_s(call.kind, call.num_bytes, shape)
        return seconds

    def _saved(self, cluster: OpCluster, node: Node, shared: frozenset[Ref]) -> list[tuple[Ref, tuple[Sbp, ...]]]:
        refs = list(node.refs())
        kept = [
            (refs[position], cluster.input_states(node.name, position))
            for position in saved_inputs(self.graph, node)
            if position < len(refs)
            and refs[position].name not in self.graph.parameter_names
            and refs[position] not in shared
            and refs[position].name in self.graph.parameter_dependent
        ]
        if saves_output(self.graph, node):
            kept.append((Ref(node.name), cluster.output_states(Ref(node.name))))
        return kept

    def _loss_s(self, domain: Domain) -> Floats:
        meta = self.graph.meta(self.graph.loss)
        table = self.boxing.table(meta.sizes, meta.num_bytes, True)
        states = domain.cluster.output_states(self.graph.loss)
        target = [I] * len(states)
        found = table.between(table.ids(states, domain.rows), table.ids(target, domain.rows))
        if self.weights.multipliers is None:
            return self.weights.micro * found
        # Nothing waits for the loss's sum before the step ends.
        return np.where(np.isinf(found), found, 0.0)


def _local(shape: tuple[int, ...], dims: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    local = list(shape)
    for dim, size in zip(dims, sizes, strict=True):
        if dim >= 0:
            local[dim] //= size
    return tuple(local)


def _index_bound(graph: LogicalGraph, ref: Ref) -> int | None:
    """Exclusive upper bound of an integer tensor, for timing ops that index with it."""
    if graph.meta(ref).is_float or graph.meta(ref).dtype == "bool":
        return None
    return graph.high
