"""Autograd of tensors without data: what it keeps, and when a backward pass frees it.

As torch's engine: nodes run in the reverse order of their creation; a node's gradients and what it kept live until it has
run; gradients of a value with several readers are added up in place where nothing else holds the first, and where that is
no view; a parameter's gradient is handed over as soon as the last of its parts has come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autosbp.costmodel.memory.tensors import TEMPORARY, Meter, Shape, Storage, Tensor, contiguous, is_dense

Gradients = Sequence["Tensor | None"]
Backward = Callable[[list[Any], Sequence[Any]], Gradients]
"""(gradients of the outputs, what was kept) -> gradients of the inputs."""


class Leaf:
    """Where gradients end; ``take`` gets each once all its parts have been added up."""

    __slots__ = ("missing", "pending", "take")

    def __init__(self, take: Callable[[Tensor], None]) -> None:
        self.take = take
        self.missing = 0
        self.pending: list[Tensor | None] = [None]


class Node:
    """One op's backward. ``before`` runs first."""

    __slots__ = ("backward", "before", "inputs", "kept", "needed", "pending")

    def __init__(
        self, inputs: Sequence[tuple[Any, int] | None], kept: list[Tensor], outputs: int, run: Backward
    ) -> None:
        self.inputs, self.kept, self.backward = inputs, kept, run
        self.pending: list[Tensor | None] = [None] * outputs
        self.before: Callable[[], None] | None = None
        self.needed = False


class Notice:
    """No op: tells that a backward pass comes by."""

    __slots__ = ("needed", "tell")

    def __init__(self, tell: Callable[[], None]) -> None:
        self.tell, self.needed = tell, False


class Machine:
    """Runs ops on tensors without data, and their backward.

    Args:
        meter: counts.
        sums_in_place: as torch adds up gradients; a dispatch mode that watches a run makes it add out of place.
        device: ``cpu`` or ``cuda``: kernels differ in what they keep.
    """

    def __init__(self, meter: Meter, *, sums_in_place: bool = True, device: str = "cpu") -> None:
        self.meter, self.sums_in_place, self.device = meter, sums_in_place, device
        self.nodes: list[Node | Notice] = []
        self.records = True

    def new(self, shape: Shape, width: int, strides: Shape | None = None, purpose: str = TEMPORARY) -> Tensor:
        """A new tensor."""
        num_bytes = width
        for size in shape:
            num_bytes *= size
        return Tensor(Storage(self.meter, num_bytes, purpose), shape, strides or contiguous(shape), width)

    def like(self, tensor: Tensor) -> Tensor:
        """A new tensor with the shape of another, row-major."""
        return self.new(tensor.shape, tensor.width)

    def record(
        self, outs: Sequence[Tensor], inputs: Sequence[Tensor | None], kept: Sequence[Tensor], run: Backward
    ) -> None:
        """What made ``outs``; nothing where no input has a gradient, or ``records`` is off."""
        if not self.records:
            return
        edges = [None if each is None or each.node is None else (each.node, each.index) for each in inputs]
        if not any(edges):
            return
        node = Node(edges, [_kept(tensor) for tensor in kept], len(outs), run)
        for index, out in enumerate(outs):
            out.node, out.index = node, index
        self.nodes.append(node)

    def backward(self, root: Tensor, gradient: Tensor) -> None:
        """Run the backward of ``root`` and forget all that was recorded."""
        gradients: list[Tensor | None] = [gradient]
        del gradient
        self.backward_of([root], gradients)

    def backward_of(self, roots: Sequence[Tensor], gradients: list[Tensor | None]) -> None:
        """As ``backward``, of several at once, where they have a gradient; the gradients are taken out of the list."""
        nodes, self.nodes = self.nodes, []
        given = [one is not None for one in gradients]  # no zip: it would hold the last gradient
        _mark([root.node for root, has in zip(roots, given, strict=True) if has and isinstance(root.node, Node)], nodes)
        for at, root in enumerate(roots):
            one, gradients[at] = gradients[at], None
            if one is not None and isinstance(root.node, Node):
                self._give(root.node, root.index, one)
        one = None
        while nodes:
            node = nodes.pop()
            if isinstance(node, Notice):
                node.tell()
            elif node.needed and any(node.pending):
                self._run(node)
            else:
                _release(node)

    def _run(self, node: Node) -> None:
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
                    self._give(*edge, one)
                if isinstance(edge[0], Leaf):
                    leaves.append(edge[0])
        one = None
        for leaf in leaves:
            self._arrived(leaf)

    def _give(self, target: Node | Leaf, index: int, gradient: Tensor) -> None:
        """Add a gradient to what is there of it."""
        pending = target.pending
        there = pending[index]
        if there is None:
            gradient.storage.pending += 1
            pending[index] = gradient
            return
        if self.sums_in_place and _is_own(there) and there is not gradient:
            return
        total = self.like(there)
        there.storage.pending -= 1
        total.storage.pending += 1
        pending[index] = total

    @staticmethod
    def _arrived(leaf: Leaf) -> None:
        leaf.missing -= 1
        if leaf.missing == 0:
            gradient, leaf.pending[0] = leaf.pending[0], None
            if gradient is not None:
                gradient.storage.pending -= 1
                leaf.take(gradient)


def _is_own(there: Tensor) -> bool:
    """Whether a sum may be written into a gradient that waits (torch's ``InputBuffer``, ``can_accumulate_inplace``): nothing
    else holds it or its storage, as a view's base does, and its elements are in one piece."""
    return there.storage.pending == 1 and not there.is_view and is_dense(there.shape, there.strides)


def _kept(tensor: Tensor) -> Tensor:
    """What autograd holds of a tensor: its storage, not what made it; nothing of one that is made again."""
    storage = tensor.storage
    if storage.lent:
        storage = Storage(storage.meter, 0, TEMPORARY)
    storage.save()
    return Tensor(storage, tensor.shape, tensor.strides, tensor.width)


def _release(node: Node) -> None:
    for tensor in node.kept:
        tensor.storage.release()
    node.kept = []
    node.backward = _spent


def _spent(_: list[Any], __: Sequence[Any]) -> Gradients:
    raise AssertionError("a backward runs once")


def _mark(roots: Sequence[Node], nodes: Sequence[Node | Notice]) -> None:
    """Which nodes the gradients of ``roots`` reach, and how many of them each leaf waits for."""
    for root in roots:
        root.needed = True
    for node in reversed(nodes):
        if node.needed and isinstance(node, Node):
            for edge in node.inputs:
                if edge is not None:
                    if isinstance(edge[0], Node):
                        edge[0].needed = True
                    else:
                        edge[0].missing += 1
