"""Autograd on meta tensors: the tensors that it saves, and when a backward pass frees them.

As in torch's engine, nodes run in the reverse order of their creation, and a node's gradients and saved tensors live
until it has run. Gradients of a value with several readers are accumulated in place if nothing else holds the first one
and it is not a view. A parameter's gradient is delivered as soon as its last part has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autosbp.costmodel.memory.meta_tensors import (
    TEMPORARY,
    MemoryMeter,
    MetaStorage,
    MetaTensor,
    Shape,
    contiguous,
    is_dense,
)

Gradients = Sequence["MetaTensor | None"]
Backward = Callable[[list[Any], Sequence[Any]], Gradients]
"""(gradients of the outputs, saved tensors) -> gradients of the inputs."""


class GradientLeaf:
    """End of a gradient path; ``take`` receives each gradient after all its parts were accumulated.

    The parts are cast to ``width`` bytes per element on arrival, as torch does for a tensor with a ``grad_dtype``.
    """

    __slots__ = ("missing", "pending", "take", "width")

    def __init__(self, take: Callable[[MetaTensor], None], width: int | None = None) -> None:
        self.take, self.width = take, width
        self.missing = 0
        self.pending: list[MetaTensor | None] = [None]


class BackwardNode:
    """Backward of one op; ``before`` runs first."""

    __slots__ = ("backward", "before", "inputs", "kept", "needed", "pending")

    def __init__(
        self, inputs: Sequence[tuple[Any, int] | None], kept: list[MetaTensor], outputs: int, run: Backward
    ) -> None:
        self.inputs, self.kept, self.backward = inputs, kept, run
        self.pending: list[MetaTensor | None] = [None] * outputs
        self.before: Callable[[], None] | None = None
        self.needed = False


class BackwardHook:
    """A node without an op: calls ``tell`` when a backward pass reaches it."""

    __slots__ = ("needed", "tell")

    def __init__(self, tell: Callable[[], None]) -> None:
        self.tell, self.needed = tell, False


class MetaAutograd:
    """Runs ops and their backward on meta tensors.

    Args:
        meter: counts bytes.
        sums_in_place: accumulate gradients in place where torch does; a dispatch mode that observes a run makes torch
            accumulate out of place.
        device: ``cpu`` or ``cuda``; their kernels save different tensors.
    """

    def __init__(self, meter: MemoryMeter, *, sums_in_place: bool = True, device: str = "cpu") -> None:
        self.meter, self.accumulates_in_place, self.device = meter, sums_in_place, device
        self.nodes: list[BackwardNode | BackwardHook] = []
        self.is_recording = True

    def new(self, shape: Shape, width: int, strides: Shape | None = None, purpose: str = TEMPORARY) -> MetaTensor:
        """Allocate a tensor."""
        num_bytes = width
        for size in shape:
            num_bytes *= size
        return MetaTensor(MetaStorage(self.meter, num_bytes, purpose), shape, strides or contiguous(shape), width)

    def empty_like(self, tensor: MetaTensor) -> MetaTensor:
        """Allocate a row-major tensor with the shape of another."""
        return self.new(tensor.shape, tensor.width)

    def record(
        self, outs: Sequence[MetaTensor], inputs: Sequence[MetaTensor | None], kept: Sequence[MetaTensor], run: Backward
    ) -> None:
        """Record the op that produced ``outs``, unless no input has a gradient or ``records`` is off."""
        if not self.is_recording:
            return
        edges = [None if each is None or each.node is None else (each.node, each.index) for each in inputs]
        if not any(edges):
            return
        node = BackwardNode(edges, [_saved_form(tensor) for tensor in kept], len(outs), run)
        for index, out in enumerate(outs):
            out.node, out.index = node, index
        self.nodes.append(node)

    def backward(self, root: MetaTensor, gradient: MetaTensor) -> None:
        """Run the backward of ``root`` and discard all recorded nodes."""
        gradients: list[MetaTensor | None] = [gradient]
        del gradient
        self.backward_many([root], gradients)

    def backward_many(self, roots: Sequence[MetaTensor], gradients: list[MetaTensor | None]) -> None:
        """``backward`` of several roots at once, those that have a gradient; empties ``gradients``."""
        nodes, self.nodes = self.nodes, []
        given = [one is not None for one in gradients]  # no zip: it would hold the last gradient
        _mark_needed(
            [root.node for root, has in zip(roots, given, strict=True) if has and isinstance(root.node, BackwardNode)],
            nodes,
        )
        for at, root in enumerate(roots):
            one, gradients[at] = gradients[at], None
            if one is not None and isinstance(root.node, BackwardNode):
                self._accumulate(root.node, root.index, one)
        one = None
        while nodes:
            node = nodes.pop()
            if isinstance(node, BackwardHook):
                node.tell()
            elif node.needed and any(node.pending):
                self._run(node)
            else:
                _release(node)

    def _run(self, node: BackwardNode) -> None:
        if node.before is not None:
            node.before()
        grads, node.pending = node.pending, []
        for grad in grads:
            if grad is not None:
                grad.storage.pending -= 1
        del grad
        found = list(node.backward(grads, node.kept))
        del grads
        _release(node)
        leaves = []
        for at, edge in enumerate(node.inputs):
            one, found[at] = found[at], None
            if edge is not None:
                if one is not None:
                    self._accumulate(*edge, one)
                if isinstance(edge[0], GradientLeaf):
                    leaves.append(edge[0])
        one = None
        for leaf in leaves:
            self._leaf_gradient_arrived(leaf)

    def _accumulate(self, target: BackwardNode | GradientLeaf, index: int, gradient: MetaTensor) -> None:
        """Accumulate a gradient into its target."""
        if isinstance(target, GradientLeaf) and target.width is not None:
            gradient = self.in_width(gradient, target.width)
        pending = target.pending
        there = pending[index]
        if there is None:
            gradient.storage.pending += 1
            pending[index] = gradient
            return
        if self.accumulates_in_place and _can_accumulate_in_place(there) and there is not gradient:
            return
        total = self.empty_like(there)
        there.storage.pending -= 1
        total.storage.pending += 1
        pending[index] = total

    def in_width(self, x: MetaTensor, width: int) -> MetaTensor:
        """A tensor in a dtype of ``width`` bytes: itself, or a new one."""
        return x if x.width == width else self.new(x.shape, width)

    @staticmethod
    def _leaf_gradient_arrived(leaf: GradientLeaf) -> None:
        leaf.missing -= 1
        if leaf.missing == 0:
            gradient, leaf.pending[0] = leaf.pending[0], None
            if gradient is not None:
                gradient.storage.pending -= 1
                leaf.take(gradient)


def _can_accumulate_in_place(there: MetaTensor) -> bool:
    """Whether torch accumulates into this pending gradient in place (``InputBuffer``, ``can_accumulate_inplace``).

    Nothing else may hold it or its storage, as a view's base does, and its elements must be dense.
    """
    return there.storage.pending == 1 and not there.is_view and is_dense(there.shape, there.strides)


def _saved_form(tensor: MetaTensor) -> MetaTensor:
    """The saved form of a tensor: its storage without its node; no bytes if backward gathers it again."""
    storage = tensor.storage
    if storage.lent:
        storage = MetaStorage(storage.meter, 0, TEMPORARY)
    storage.save()
    return MetaTensor(storage, tensor.shape, tensor.strides, tensor.width)


def _release(node: BackwardNode) -> None:
    for tensor in node.kept:
        tensor.storage.release()
    node.kept = []
    node.backward = _backward_already_run


def _backward_already_run(_: list[Any], __: Sequence[Any]) -> Gradients:
    raise AssertionError("backward was already run")


def _mark_needed(roots: Sequence[BackwardNode], nodes: Sequence[BackwardNode | BackwardHook]) -> None:
    """Mark the nodes that gradients of ``roots`` reach, and count the gradients that each leaf waits for."""
    for root in roots:
        root.needed = True
    for node in reversed(nodes):
        if node.needed and isinstance(node, BackwardNode):
            for edge in node.inputs:
                if edge is not None:
                    if isinstance(edge[0], BackwardNode):
                        edge[0].needed = True
                    else:
                        edge[0].missing += 1
