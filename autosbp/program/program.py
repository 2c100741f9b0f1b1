"""The physical program: ops and boxings in the order in which one rank runs them.

The cost model charges exactly this list and the executor lowers exactly this list, so the executed collectives are the
predicted ones. Values that depend on no parameter (labels, masks, positions) are computed whole on every rank and
sliced locally where an op needs a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Node, Parameter, Ref
from autosbp.plan.plan import Signature, Strategy
from autosbp.program.chosen_options import checked_choices, uneven_choice
from autosbp.program.shared_boxing import boxing_group, sends_gradient
from autosbp.sbp.boxing import COLLECTIVES, BoxingStep, is_even, step_between
from autosbp.sbp.layout import B, I, NdSbp, format_nd_sbp, invariant_as_replicated
from autosbp.sbp.rules import node_options


@dataclass(frozen=True, slots=True)
class Boxing:
    """Copy ``ref`` to layout ``dst`` by ``steps``, for the readers in ``group``; ``data`` is sliced locally."""

    ref: Ref
    group: str
    src: NdSbp
    dst: NdSbp
    steps: tuple[BoxingStep, ...]
    differentiable: bool
    data: bool = False

    @property
    def key(self) -> tuple[Ref, str, NdSbp]:
        return (self.ref, self.group, self.dst)

    @property
    def communicates(self) -> bool:
        """Whether a step sends anything, forward or backward."""
        return any(step.forward in COLLECTIVES or step.backward in COLLECTIVES for step in self.steps)

    def overlaps_backward(self, step: BoxingStep) -> bool:
        """Whether nothing in the program waits for the step's collective: the final all-reduce of the loss."""
        ends = self.group == LOSS_GROUP and step == self.steps[-1]
        return ends and (step.forward, step.backward) == ("all_reduce", "none")


@dataclass(frozen=True, slots=True)
class Op:
    """Run a node. ``reads`` are its tensor arguments: a value or the key of a ``Boxing``. No ``signature``: data."""

    node: Node
    reads: tuple[Ref | tuple[Ref, str, NdSbp], ...]
    signature: Signature | None


Item = Boxing | Op
LOSS_GROUP, PARAMETER_GROUP = "loss", "parameter"
"""Boxing groups of the loss and of parameters: all readers of a parameter in one layout share one copy."""


def program_items(graph: LogicalGraph, strategy: Strategy) -> Iterator[Item]:
    """Ops and boxings of one microbatch, in order; the last item boxes the loss to I on every axis.

    Results of a single call, and values that a pipeline chunk sends on, stay in the layouts that their ops produce.

    Args:
        graph: bound at the strategy's microbatch.

    Raises:
        InputError: the strategy does not fit the graph, has an illegal signature or lacks a path.
    """
    mesh = strategy.mesh
    made: dict[tuple[Ref, str, NdSbp], bool] = {}
    stored = strategy.parameters
    layouts: dict[Ref, NdSbp] = {
        Ref(leaf.name): stored[leaf.name] for leaf in graph.parameters if leaf.name in stored
    }  # fmt: skip
    whole = (B,) * mesh.ndim
    for name in [leaf.name for leaf in graph.inputs] + [leaf.name for leaf in graph.constants]:
        layouts[Ref(name)] = whole
    for ref in graph.received_refs:
        layouts[ref] = output_layout(strategy, ref)
    for parameter in () if graph.results and strategy.pipeline is None else graph.parameters:
        _check_stored(parameter, strategy)
    for node in graph.nodes:
        if node.name not in graph.parameter_dependent:
            for index in range(len(node.outputs)):
                layouts[Ref(node.name, index)] = whole
            yield Op(node, tuple(node.refs()), None)
            continue
        signature = strategy.signatures.get(node.name)
        refs = tuple(node.refs())
        if signature is None or len(signature.ins) != len(refs) or len(signature.outs) != len(node.outputs):
            field = f"strategy.signatures.{node.name}"
            raise InputError(field, signature, f"expected layouts of {len(refs)} inputs")
        check_signature(graph, node, signature, strategy)
        reads: list[Ref | tuple[Ref, str, NdSbp]] = []
        for position, (ref, wanted) in enumerate(zip(refs, signature.ins, strict=True)):
            if layouts[ref] == wanted:
                reads.append(ref)
                continue
            trains = ref.name in graph.parameter_names and node.name in graph.differentiable
            group = PARAMETER_GROUP if trains else boxing_group(graph, node, position)
            box = make_boxing(graph, strategy, ref, group, layouts[ref], wanted)
            if box.key not in made:
                made[box.key] = True
                yield box
            reads.append(box.key)
        for index, layout in enumerate(signature.outs):
            layouts[Ref(node.name, index)] = layout
        yield Op(node, tuple(reads), signature)
    if not graph.results:
        target = (I,) * mesh.ndim
        yield make_boxing(graph, strategy, graph.loss, LOSS_GROUP, layouts[graph.loss], target)


def output_layout(strategy: Strategy, ref: Ref) -> NdSbp:
    """The layout in which an op produces a value."""
    signature = strategy.signatures.get(ref.name)
    if signature is None or ref.index >= len(signature.outs):
        raise InputError(f"strategy.signatures.{ref.name}", signature, "expected layouts of this op")
    return signature.outs[ref.index]


def make_boxing(graph: LogicalGraph, strategy: Strategy, ref: Ref, group: str, src: NdSbp, dst: NdSbp) -> Boxing:
    """The boxing of one value; data is sliced locally, computed values take the strategy's path."""
    meta, data = graph.meta(ref), ref.name not in graph.parameter_dependent
    differentiable = graph.has_gradient(ref) and sends_gradient(group)
    if not differentiable:
        src = invariant_as_replicated(src)
    if src == dst:
        return Boxing(ref, group, src, dst, (), differentiable, data)
    if data:
        if not is_even(meta.sizes, dst, strategy.mesh):
            limit = f"expected an even split of {ref.name} {list(meta.sizes)}"
            raise InputError("strategy", format_nd_sbp(dst), limit)
        return Boxing(ref, group, src, dst, (), False, True)
    route = strategy.paths.get((meta.sizes, meta.num_bytes, differentiable, src, dst))
    if route is None:
        wanted = f"{ref.name}: {format_nd_sbp(src)} -> {format_nd_sbp(dst)}"
        raise InputError("strategy.paths", wanted, "expected a path")
    steps = []
    for one, two in zip(route, route[1:], strict=False):
        step = step_between(one, two, strategy.mesh)
        if step is None or not is_even(meta.sizes, two, strategy.mesh):
            change = f"{format_nd_sbp(one)} -> {format_nd_sbp(two)}"
            raise InputError("strategy.paths", change, "expected a primitive step")
        steps.append(step)
    return Boxing(ref, group, src, dst, tuple(steps), differentiable)


def _check_stored(parameter: Parameter, strategy: Strategy) -> None:
    """Check that a stored parameter is whole or evenly split; P would give every rank the whole optimizer step."""
    layout = strategy.parameters.get(parameter.name)
    field, sizes = f"strategy.parameters.{parameter.name}", parameter.meta.sizes
    if layout is None or len(layout) != strategy.mesh.ndim:
        shown = None if layout is None else format_nd_sbp(layout)
        raise InputError(field, shown, f"expected a layout of {strategy.mesh.ndim} entries")
    if any(sbp.is_partial for sbp in layout) or not is_even(sizes, layout, strategy.mesh):
        raise InputError(field, format_nd_sbp(layout), f"expected an even split of {list(sizes)} without P")


def check_signature(graph: LogicalGraph, node: Node, signature: Signature, strategy: Strategy) -> None:
    """Check that the layouts on each axis are one of the op's options, and that every split is even."""
    field = f"strategy.signatures.{node.name}"
    metas = (*(graph.meta(ref) for ref in node.refs()), *node.outputs)
    legal = node_options(graph, node)
    # Ops of repeated blocks are checked once. The entry keeps the options alive, so that their id is not reused.
    checked = graph.cache.setdefault(("checked", strategy.mesh), {})
    if checked.get((id(legal), signature, metas)) is legal:
        return
    for layout in (*signature.ins, *signature.outs):
        if len(layout) != strategy.mesh.ndim:
            raise InputError(field, format_nd_sbp(layout), f"expected {strategy.mesh.ndim} entries")
    choices = checked_choices(graph, node, signature, strategy.mesh.ndim)
    uneven = uneven_choice(choices, strategy.mesh)
    if uneven is not None:
        raise InputError(field, str(signature), f"expected axes that divide the {uneven.size} of {uneven.factor}")
    for meta, layout in zip(metas, (*signature.ins, *signature.outs), strict=True):
        if not is_even(meta.sizes, layout, strategy.mesh):
            raise InputError(field, format_nd_sbp(layout), f"expected an even split of {list(meta.sizes)}")
    checked[id(legal), signature, metas] = legal
