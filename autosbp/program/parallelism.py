"""Parallelism of a strategy as other trainers describe it: data and tensor parallel degrees, and sharded parameters.

Every mesh axis has a role. It is the role with most FLOPs among the ops that have parameters or matrix products:

| role | an op with this role | its parameters |
|---|---|---|
| data | splits the batch | are whole, or sharded and gathered (ZeRO, FSDP) |
| tensor | splits its parameters or heads; ops with only vectors may split the sequence or repeat work | are split as used |
| sequence | splits activations along another dim than the batch (context parallelism) | are whole |
| repeated | splits nothing | are whole |

``deviations`` has every op and parameter that does not follow the role of an axis. Without deviations, a strategy is one
grid of data x tensor parallel ranks for all layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.plan.plan import Strategy
from autosbp.program.parameter_sharding import gather_step
from autosbp.sbp.layout import B, I, NdSbp, P, Sbp, format_nd_sbp
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import sharding_of

DATA, TENSOR, SEQUENCE, REPEATED = "data", "tensor", "sequence", "repeated"


@dataclass(frozen=True, slots=True)
class Deviation:
    """An op or parameter that does not follow the role of a mesh axis.

    Args:
        name: name of the op or parameter.
        layouts: signature of the op, or stored layout of the parameter.
        axis: name of the mesh axis.
        why: what the op or parameter does on the axis, as a predicate.
        reads: names of the op's parameters.
    """

    name: str
    layouts: str
    axis: str
    why: str
    reads: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"on mesh axis {self.axis}, {self.name} [{self.layouts}] {self.why}"

    @property
    def summary(self) -> str:
        """The deviation without layouts and axis."""
        return f"{self.name}{f' ({self.reads[0]})' if self.reads else ''} {self.why}"


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Parallel degrees inside a pipeline stage, and deviations from them.

    Args:
        roles: role of each mesh axis, outermost first.
        sizes: size of each mesh axis.
        sharded_axes: data axes over which parameters are sharded.
        is_sequence_parallel: whether norms and other ops without matrices split the sequence over the tensor axes.
        deviations: deviating ops, then parameters, in the model's order.
    """

    roles: tuple[str, ...]
    sizes: tuple[int, ...]
    sharded_axes: frozenset[int]
    is_sequence_parallel: bool
    deviations: tuple[Deviation, ...]

    def degree(self, role: str) -> int:
        """Number of ranks over all axes of a role."""
        return prod(size for size, own in zip(self.sizes, self.roles, strict=True) if own == role)

    @property
    def data(self) -> int:
        return self.degree(DATA)

    @property
    def tensor(self) -> int:
        return self.degree(TENSOR)

    @property
    def sharded(self) -> int:
        """Number of data parallel ranks over which parameters are sharded; 1 without sharding."""
        return prod(self.sizes[axis] for axis in self.sharded_axes)

    @property
    def replicated(self) -> int:
        """Number of data parallel ranks that store the same parameters; with ``sharded`` above 1 that is HSDP."""
        return self.data // self.sharded

    @property
    def has_tensor_ranks_innermost(self) -> bool:
        """Whether no data axis is inside a tensor axis."""
        return DATA not in self.roles[self.roles.index(TENSOR) if TENSOR in self.roles else len(self.roles) :]

    @property
    def has_sharded_ranks_innermost(self) -> bool:
        """Whether no unsharded data axis is inside a sharded one."""
        data = [axis for axis, role in enumerate(self.roles) if role == DATA]
        return all(axis in self.sharded_axes for axis in data if axis > min(self.sharded_axes, default=len(data)))


def parallelism_of(graph: LogicalGraph, strategy: Strategy, bound: LogicalGraph | None = None) -> Parallelism:
    """The parallelism of a strategy.

    Args:
        graph: the graph with a symbolic batch.
        strategy: the strategy.
        bound: the graph at the strategy's microbatch size; computed if None.
    """
    ops = _Ops(graph, strategy, bound or graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch)))
    roles = tuple(ops.role(axis) for axis in range(strategy.mesh.ndim))
    sharded = _sharded_axes(graph, strategy, roles, ops.used)
    found = [each for axis, role in enumerate(roles) for each in ops.deviations(axis, role)]
    found += _stored_otherwise(graph, strategy, roles, sharded, ops.used)
    return Parallelism(
        roles, strategy.mesh.shape, sharded, ops.num_sequence_ops > ops.num_whole_ops, tuple(dict.fromkeys(found))
    )


class _Ops:
    """Ops with parameters or matrix products, and their roles on each mesh axis."""

    def __init__(self, graph: LogicalGraph, strategy: Strategy, bound: LogicalGraph) -> None:
        self.graph, self.strategy = graph, strategy
        self.parameters = graph.parameter_names
        self.used: dict[str, NdSbp] = {}
        self.num_sequence_ops = self.num_whole_ops = 0
        self.ops: list[tuple[Node, float]] = []
        for node, own in zip(graph.nodes, bound.nodes, strict=True):
            if node.name in strategy.signatures:
                flops, owned = sharding_of(bound, own).flops, False
                for ref, layout in zip(node.refs(), strategy.signatures[node.name].ins, strict=True):
                    if ref.name in self.parameters:
                        self.used[ref.name], owned = layout, True
                if owned or flops > 0:
                    self.ops.append((node, flops))

    def role(self, axis: int) -> str:
        """The role of an axis: the one with most FLOPs; ops without a clear role do not count."""
        votes: dict[str, float] = {}
        for node, flops in self.ops:
            does = self._does(node, axis)
            if does:
                votes[does] = votes.get(does, 0.0) + flops
        return max(votes, key=lambda role: votes[role]) if votes else self._first_split(axis)

    def _first_split(self, axis: int) -> str:
        """The role of an axis on which no op has a clear role: that of the first op that splits anything."""
        return next((does for node, _ in self.ops if (does := self._does(node, axis)) not in ("", REPEATED)), REPEATED)

    def _places(self, node: Node, axis: int) -> list[tuple[Ref, Sbp]]:
        signature = self.strategy.signatures[node.name]
        outs = [Ref(node.name, index) for index in range(len(node.outputs))]
        layouts = zip((*node.refs(), *outs), (*signature.ins, *signature.outs), strict=True)
        return [(ref, layout[axis]) for ref, layout in layouts]

    def _does(self, node: Node, axis: int) -> str:
        """Role of an op on an axis; "" if unclear: it splits heads or the sequence and reads no matrix."""
        places = self._places(node, axis)
        split = [(ref, sbp.dim) for ref, sbp in places if sbp.is_split]
        if any(isinstance(self.graph.meta(ref).shape[dim], str) for ref, dim in split):
            return DATA
        if any(ref.name in self.parameters for ref, _ in split):
            return TENSOR
        if not split:
            return REPEATED
        return SEQUENCE if self._has_matrix(node) else ""

    def _has_matrix(self, node: Node) -> bool:
        return any(ref.name in self.parameters and len(self.graph.meta(ref).shape) > 1 for ref in node.refs())

    def deviations(self, axis: int, role: str) -> list[Deviation]:
        """Ops and parameters that do not follow the role of an axis."""
        found = []
        for node, flops in self.ops:
            why = self._deviation(node, flops, axis, role)
            if why:
                reads = tuple(ref.name for ref in node.refs() if ref.name in self.parameters)
                signature, name = str(self.strategy.signatures[node.name]), self.strategy.mesh.axes[axis].name
                found.append(Deviation(node.name, signature, name, why, reads))
        return found

    def _deviation(self, node: Node, flops: float, axis: int, role: str) -> str:
        places, does = self._places(node, axis), self._does(node, axis)
        owned = [(ref, sbp) for ref, sbp in places if ref.name in self.parameters]
        if role == REPEATED or (role == SEQUENCE and does in (SEQUENCE, "")):
            return "" if does in (role, "") else f"is {does} parallel while other ops repeat their work"
        if role == DATA:
            if does in (TENSOR, SEQUENCE, "") or any(sbp.is_split for _, sbp in owned):
                return f"is {does or TENSOR} parallel while other ops are data parallel"
            has_batch = any(isinstance(dim, str) for meta in node.outputs for dim in meta.shape)
            return "repeats its work" if does == REPEATED and has_batch else ""
        if does == DATA:
            return f"is data parallel while other ops are {role} parallel"
        if does == SEQUENCE:
            return "splits activations but not its parameters"
        if role == TENSOR and owned and not self._has_matrix(node) and not flops:
            # Splitting the sequence or repeating the work: the gradients' communication has the same bytes either way.
            self.num_sequence_ops += does == ""
            self.num_whole_ops += does == REPEATED
            return ""
        is_whole = does == REPEATED and (flops > 0 or any(sbp != I for _, sbp in owned))
        return "repeats its work" if is_whole else ""


def _sharded_axes(
    graph: LogicalGraph, strategy: Strategy, roles: Sequence[str], used: Mapping[str, NdSbp]
) -> frozenset[int]:
    """Data axes over which parameters are sharded, decided by the majority of bytes."""
    votes: Counter[frozenset[int]] = Counter()
    for leaf in graph.trained:
        if leaf.name in used:
            stored = strategy.parameters[leaf.name]
            votes[_split_in_storage(stored, used[leaf.name], roles)] += leaf.meta.num_bytes
    return max(votes, key=lambda axes: (votes[axes], sorted(axes)), default=frozenset())


def _split_in_storage(stored: NdSbp, used: NdSbp, roles: Sequence[str]) -> frozenset[int]:
    """Data axes over which a parameter is sharded: stored split, used whole."""
    return frozenset(
        axis for axis, role in enumerate(roles) if role == DATA and stored[axis].is_split and used[axis] == B
    )


def _stored_otherwise(
    graph: LogicalGraph, strategy: Strategy, roles: Sequence[str], sharded: frozenset[int], used: Mapping[str, NdSbp]
) -> list[Deviation]:
    """Parameters whose storage differs from that of most parameters, although it could be the same."""
    found = []
    for leaf in graph.trained:
        if leaf.name not in used:
            continue
        stored, read = strategy.parameters[leaf.name], used[leaf.name]
        for axis, role in enumerate(roles):
            why = _storage_deviation(stored[axis], read[axis], role, is_sharded=axis in sharded)
            if why and not (axis in sharded and _stays_whole(leaf.meta.sizes, stored, read, strategy.mesh, sharded)):
                found.append(Deviation(leaf.name, format_nd_sbp(stored), strategy.mesh.axes[axis].name, why))
                break
    return found


def _stays_whole(shape: tuple[int, ...], stored: NdSbp, read: NdSbp, mesh: Mesh, sharded: frozenset[int]) -> bool:
    """Whether a parameter cannot be sharded: no dim divides evenly (trainers pad it), or it is added to a partial sum."""
    return P in read or (stored == read and layout_sharded_over(shape, read, mesh, sharded) is None)


def _storage_deviation(stored: Sbp, read: Sbp, role: str, *, is_sharded: bool) -> str:
    if role == TENSOR and (stored, read) == (I, P):
        return ""  # a bias that is added to a partial sum on one rank only
    if role == DATA and is_sharded:
        return "" if stored.is_split and read == B else f"is stored as {stored} while other parameters are split"
    return "" if stored == read else f"is stored as {stored} but used as {read}"


def layout_sharded_over(shape: tuple[int, ...], used: NdSbp, mesh: Mesh, axes: frozenset[int]) -> NdSbp | None:
    """Stored layout that one all-gather over ``axes`` turns into ``used``; None if there is none.

    ``used`` has to be whole on all of ``axes``.
    """
    if not axes or any(used[axis] != B for axis in axes):
        return None
    # I on the other axes where the parameter is whole: these are not gathered.
    kept = tuple(I if sbp == B and axis not in axes else sbp for axis, sbp in enumerate(used))
    step = gather_step(shape, kept, mesh)
    if step is None:
        return None
    return tuple(split if axis in axes else own for axis, (split, own) in enumerate(zip(step.src, used, strict=True)))
