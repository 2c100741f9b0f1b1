"""The option of its rule that an op takes on each mesh axis, recovered from a signature's layouts."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.plan.plan import Signature
from autosbp.sbp.factor_notation import AxisOption
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import node_options


class _OptionCache:
    """Options of an op by their layouts, and the choices of signatures already looked up."""

    def __init__(self, legal: Sequence[AxisOption]) -> None:
        self.legal = legal
        self.options = {(each.ins, each.outs): each for each in legal}
        self.found: dict[tuple[Signature, int], tuple[AxisOption | None, ...]] = {}


def checked_choices(graph: LogicalGraph, node: Node, signature: Signature, num_axes: int) -> tuple[AxisOption, ...]:
    """One option per mesh axis; raises ``InputError`` if the layouts on an axis are none of the op's legal ones."""
    choices = []
    for axis, choice in enumerate(option_choices(graph, node, signature, num_axes)):
        if choice is None:
            field = f"strategy.signatures.{node.name}"
            raise InputError(field, str(signature), f"expected a legal signature of {node.op} on axis {axis}")
        choices.append(choice)
    return tuple(choices)


def option_choices(
    graph: LogicalGraph, node: Node, signature: Signature, num_axes: int
) -> tuple[AxisOption | None, ...]:
    """Like ``checked_choices``, with None where the layouts on an axis are illegal."""
    legal = node_options(graph, node)
    # Ops of repeated blocks have the same options, and mostly the same layouts.
    known = graph.cache.get(("by layouts", id(legal)))
    if known is None:
        known = graph.cache["by layouts", id(legal)] = _OptionCache(
            legal
        )  # keeps the options alive, so that their id is not reused
    choices: tuple[AxisOption | None, ...] | None = known.found.get((signature, num_axes))
    if choices is None:
        columns = [
            (tuple(layout[axis] for layout in signature.ins), tuple(layout[axis] for layout in signature.outs))
            for axis in range(num_axes)
        ]
        choices = known.found[signature, num_axes] = tuple(known.options.get(column) for column in columns)
    return choices


def uneven_choice(choices: Sequence[AxisOption], mesh: Mesh) -> AxisOption | None:
    """An option whose axes together do not divide its extent, or None.

    Example: 3 devices for 2 groups of 6 channels. ``sbp.boxing.is_even`` checks the sizes of tensors instead.
    """
    parts: dict[str, int] = {}
    for axis, choice in zip(mesh.axes, choices, strict=True):
        parts[choice.factor] = parts.get(choice.factor, 1) * axis.size
    return next((choice for choice in choices if choice.size and choice.size % parts[choice.factor]), None)


def implemented_axes(choices: Sequence[AxisOption | None]) -> dict[str, tuple[int, ...]]:
    """Mesh axes that split each factor served by a split implementation."""
    found: dict[str, tuple[int, ...]] = {}
    for axis, choice in enumerate(choices):
        if choice is not None and choice.needs_split_impl:
            found[choice.factor] = (*found.get(choice.factor, ()), axis)
    return found
