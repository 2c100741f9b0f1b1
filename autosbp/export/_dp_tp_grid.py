"""Check that a strategy is a grid of data x tensor parallel ranks, the only layout that many tools can express.

Every mesh axis must have one role over all ops that hold parameters or matrix products:

| role | such an op | its parameters are stored |
|---|---|---|
| data | splits the batch, or has none | whole, gradients summed over the axis (B) |
| tensor | splits its parameters or heads, never the batch; only ops without products may repeat their work | as used |

Data axes must come first in the mesh, because these tools number tensor parallel ranks fastest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from autosbp.errors import UnsupportedError
from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.plan.plan import Plan, Signature, Strategy
from autosbp.sbp.layout import B, I, P, Sbp, format_nd_sbp
from autosbp.sbp.rules import sharding_of


@dataclass(frozen=True, slots=True)
class ParallelGrid:
    """Degrees of data and tensor parallelism, and the batch of one data parallel replica and microbatch."""

    data: int
    tensor: int
    global_batch: int
    replica_batch: int
    num_micro: int
    dtype: str
    optimizer: str
    precision: str | None

    @property
    def full_precision_gradients(self) -> bool:
        """Whether gradients of half-precision parameters are accumulated and reduced in float32."""
        return self.precision in ("bf16-mixed", "fp16-mixed")

    def refuse_without_master_weights(self, target: str) -> None:
        """Raise ``UnsupportedError`` for a precision without float32 master weights."""
        if self.precision == "bf16":
            raise UnsupportedError(f"{target} keeps float32 master weights; the plan's precision bf16 has none")


def parallel_grid(plan: Plan, graph: LogicalGraph, target: str) -> ParallelGrid:
    """The plan's grid; raise ``UnsupportedError``, naming the first op that does not fit."""
    strategy = plan.strategy
    if strategy.offload:
        raise UnsupportedError(f"{target} can offload only sharded optimizer state; the plan shards none")
    roles = [_AxisRole(graph, strategy, axis, target).find() for axis in range(strategy.mesh.ndim)]
    if "data" in roles[roles.index("tensor") if "tensor" in roles else len(roles) :]:
        shown = ", ".join(f"{axis.name}: {role}" for axis, role in zip(strategy.mesh.axes, roles, strict=True))
        raise UnsupportedError(
            f"{target} requires the tensor parallel axis innermost; the plan's mesh axes are {shown}"
        )
    sizes = dict(zip(range(len(roles)), strategy.mesh.shape, strict=True))
    data = prod(size for axis, size in sizes.items() if roles[axis] == "data")
    tensor = prod(size for axis, size in sizes.items() if roles[axis] == "tensor")
    dtypes = sorted({leaf.meta.dtype for leaf in graph.parameters})
    if len(dtypes) > 1:
        raise UnsupportedError(f"{target} stores all parameters in one dtype; the model has {', '.join(dtypes)}")
    if strategy.micro_batch % data:
        raise UnsupportedError(
            f"{target} cannot split a microbatch of {strategy.micro_batch} evenly over {data} replicas"
        )
    return ParallelGrid(
        data,
        tensor,
        strategy.global_batch,
        strategy.micro_batch // data,
        strategy.num_micro,
        dtypes[0],
        strategy.optimizer,
        plan.precision,
    )


class _AxisRole:
    """The role of one mesh axis."""

    def __init__(self, graph: LogicalGraph, strategy: Strategy, axis: int, target: str) -> None:
        self.graph, self.strategy, self.axis, self.target = graph, strategy, axis, target
        self.bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
        self.name = strategy.mesh.axes[axis].name

    def find(self) -> str:
        """``data`` or ``tensor``: the first op that splits something decides, and every other op must agree."""
        role = ""
        pairs = zip(self.graph.nodes, self.bound.nodes, strict=True)
        relevant = [(node, bound) for node, bound in pairs if self._is_relevant(bound)]
        for node, _ in relevant:
            role = role or self._op_role(node)
        if not role:
            first = relevant[0][0].name if relevant else "the model"
            raise self._refusal(first, "repeats all its work")
        for node, bound in relevant:
            self._check(node, bound, role)
        return role

    def _is_relevant(self, bound: Node) -> bool:
        """Whether the op holds parameters or matrix products."""
        if bound.name not in self.strategy.signatures:
            return False
        owned = any(ref.name in self.graph.parameter_names for ref in bound.refs())
        return owned or sharding_of(self.bound, bound).flops > 0

    def _layouts(self, node: Node) -> list[tuple[Ref, Sbp]]:
        signature: Signature = self.strategy.signatures[node.name]
        outs = [Ref(node.name, index) for index in range(len(node.outputs))]
        layouts = zip((*node.refs(), *outs), (*signature.ins, *signature.outs), strict=True)
        return [(ref, layout[self.axis]) for ref, layout in layouts]

    def _op_role(self, node: Node) -> str:
        """The op's use of the axis: ``data``, ``tensor``, or "" if it splits nothing."""
        split = [(ref, sbp.dim) for ref, sbp in self._layouts(node) if sbp.is_split]
        if any(isinstance(self.graph.meta(ref).shape[dim], str) for ref, dim in split):
            return "data"
        return "tensor" if split else ""

    def _check(self, node: Node, bound: Node, role: str) -> None:
        places = self._layouts(node)
        owned = [(ref, sbp) for ref, sbp in places if ref.name in self.graph.parameter_names]
        found = self._op_role(node)
        whole = not any(sbp.is_split for _, sbp in owned)
        if found not in ("", role) or (found == "data" and not whole):
            raise self._refusal(node.name, f"is {found} parallel while other ops are {role} parallel")
        if role == "data":
            has_batch = any(isinstance(dim, str) for meta in node.outputs for dim in meta.shape)
            if not found and has_batch:
                raise self._refusal(node.name, "repeats its work")
        elif found and owned and whole:
            raise self._refusal(node.name, "splits activations but not its parameters")
        elif not found and (sharding_of(self.bound, bound).flops > 0 or any(sbp != I for _, sbp in owned)):
            raise self._refusal(node.name, "repeats its work")
        for ref, sbp in owned:
            stored = self.strategy.parameters[ref.name][self.axis]
            if (stored, sbp) == (I, P) and role == "tensor":
                continue  # a bias added to a partial sum, added once
            if stored != sbp or (role == "data" and stored != B):
                raise self._refusal(ref.name, f"is stored as {stored} but used as {sbp}")

    def _refusal(self, name: str, why: str) -> UnsupportedError:
        layouts = self.strategy.signatures.get(name) or format_nd_sbp(self.strategy.parameters.get(name, ()))
        return UnsupportedError(
            f"{self.target} supports only data x tensor parallel grids: on mesh axis {self.name}, {name} "
            f"[{layouts}] {why}; use --to dtensor for this plan"
        )
