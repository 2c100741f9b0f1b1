"""Checks of a synchronization strategy against a model, its layouts and the mesh."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Parameter, Ref
from autosbp.plan.plan import Strategy
from autosbp.plan.synchronizers import BF16, FP16, ParameterSync, SyncStrategy
from autosbp.program.parameter_gathers import Gather
from autosbp.sbp.layout import B, NdSbp, local_shape
from autosbp.sbp.mesh import Mesh

SYNC_FIELD = "strategy.sync"
LOOKUP_OPS = ("aten.embedding.default",)
"""Lookup ops: the gradient of their first argument is zero except in the rows that the batch looks up."""


def gradient_reduction_axes(layout: NdSbp) -> tuple[int, ...]:
    """The axes over which a parameter's gradient is partial."""
    return tuple(axis for axis, sbp in enumerate(layout) if sbp == B)


def axes_order(mesh: Mesh, axes: tuple[int, ...], sync: ParameterSync) -> tuple[tuple[int, ...], ...]:
    """Reduction axes of each phase: those of ``sync.order``, or one phase over all axes."""
    names = {mesh.axes[axis].name: axis for axis in axes}
    return tuple(tuple(sorted(names[name] for name in part)) for part in sync.order) or (axes,)


def lookup_parameters(graph: LogicalGraph) -> frozenset[str]:
    """Parameters that only lookup ops read, so that their gradients are zero except in the rows of the batch."""
    looked_up, other = set[str](), set[str]()
    for node in graph.nodes:
        for at, ref in enumerate(node.refs()):
            (looked_up if at == 0 and node.op in LOOKUP_OPS else other).add(ref.name)
    return graph.parameter_names & (looked_up - other)


def check_sync(graph: LogicalGraph, strategy: Strategy, *, apart: frozenset[str] = frozenset()) -> None:
    """Check a synchronization strategy against the graph and the layouts.

    Args:
        graph: the whole model, with any batch size.
        apart: parameters that several pipeline stages store, whose copies the default all-reduce keeps equal.

    Raises:
        InputError: names the field of an unknown parameter, a parameter without a gradient, a dim or number of shards
            out of range, a destination outside of the reduction group, axes that are not those of the group, or sparse
            rows of a parameter that other ops than lookups read.
    """
    sync = strategy.sync
    if sync is None:
        return
    leaves = {leaf.name: leaf for leaf in graph.parameters}
    lookups = lookup_parameters(graph)
    sizes = [1]
    for name, one in sync.parameters.items():
        field = f"{SYNC_FIELD}.parameters.{name}"
        one.check(field)
        leaf = leaves.get(name)
        if leaf is None:
            raise InputError(field, name, "expected a parameter of the model")
        if not (leaf.trained and leaf.meta.is_float):
            kind = leaf.meta.dtype if leaf.trained else f"frozen {leaf.meta.dtype}"
            raise InputError(field, kind, "expected a trained floating-point parameter: others have no gradient")
        if name in apart:
            raise InputError(field, name, "several pipeline stages store this parameter: leave it to the default")
        axes = gradient_reduction_axes(strategy.parameters[name])
        if not axes:
            _check_stored_split(one, field)
            continue
        size = strategy.mesh.group_size(axes)
        sizes.append(size)
        _check_group(strategy.mesh, axes, one, field)
        _check_shards(leaf, strategy, one, field)
        if one.sparse_rows and name not in lookups:
            raise InputError(f"{field}.sparse_rows", name, f"only {', '.join(LOOKUP_OPS)} may read this parameter")
    _check_replicas(sync, max(sizes))


def _check_stored_split(sync: ParameterSync, field: str) -> None:
    """Refuse settings other than groups and 16-bit compressors for a sharded parameter, which uses reduce-scatter."""
    plain = ParameterSync(groups=sync.groups[:1], compressor=sync.compressor)
    if sync != plain or (sync.compressor and sync.compressor.name not in (FP16, BF16)):
        limit = "its gradient is reduce-scattered: expected all_reduce with a group, and no compressor but fp16 or bf16"
        raise InputError(field, str(sync), limit)


def check_gathered(strategy: Strategy, names: Iterable[str], gathers: Iterable[Gather]) -> None:
    """Refuse synchronization of parameters that are split in storage and in use.

    Args:
        names: parameters of a program.
        gathers: the program's parameter gathers.
    """
    if strategy.sync is None:
        return
    gathered = {box.ref.name for gather in gathers if gather.flat for box in gather.boxes}
    for name in strategy.sync.parameters.keys() & set(names) - gathered:
        if not gradient_reduction_axes(strategy.parameters[name]):
            field = f"{SYNC_FIELD}.parameters.{name}"
            raise InputError(field, name, "no other device has a gradient of its part: there is nothing to reduce")


def _check_replicas(sync: SyncStrategy, largest: int) -> None:
    if sync.parameters and sync.replicas != largest:
        raise InputError(f"{SYNC_FIELD}.replicas", sync.replicas, f"the strategy's layouts have {largest} replicas")


def _check_group(mesh: Mesh, axes: tuple[int, ...], sync: ParameterSync, field: str) -> None:
    size = mesh.group_size(axes)
    for at, destination in enumerate(sync.destinations):
        if destination >= size:
            raise InputError(f"{field}.destinations[{at}]", destination, f"the reduction group has {size} replicas")
    names = [name for part in sync.order for name in part]
    group = [mesh.axes[axis].name for axis in axes]
    if names and sorted(names) != sorted(group):
        limit = f"expected each of the axes {', '.join(group)} once"
        raise InputError(f"{field}.order", [list(part) for part in sync.order], limit)


def _check_shards(leaf: Parameter, strategy: Strategy, sync: ParameterSync, field: str) -> None:
    if sync.partition is None:
        return
    shape = local_shape(leaf.meta.sizes, strategy.parameters[leaf.name], strategy.mesh)
    dim, shards = sync.partition.dim, sync.partition.shards
    if dim >= len(shape):
        raise InputError(f"{field}.partition", [dim, shards], f"expected a dim below {len(shape)}")
    if shards > shape[dim]:
        raise InputError(f"{field}.partition", [dim, shards], f"dim {dim} of a device's part has {shape[dim]} rows")


def lookups_per_replica(graph: LogicalGraph, strategy: Strategy, name: str) -> int:
    """Number of lookups of a parameter by one replica in a step; ``graph`` is bound at the microbatch size."""
    count = 0
    for node in graph.nodes:
        if Ref(name) in node.refs() and node.op in LOOKUP_OPS:
            shape = local_shape(node.outputs[0].sizes, strategy.signatures[node.name].outs[0], strategy.mesh)
            count += prod(shape[:-1])
    return count * strategy.num_micro
