"""The skeleton of the physical program: ops and boxings in the order in which one rank runs them.

The cost model charges exactly this list and the executor lowers exactly this list; that is what makes the executed
collectives the predicted ones. Values that depend on no parameter (labels, masks, positions) are computed whole on
every rank and cut locally where an op wants a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Node, Parameter, Ref
from autosbp.plan import Signature, Strategy
from autosbp.sbp.boxing import COLLECTIVES, Step, is_even, step_between
from autosbp.sbp.choices import axis_choices, uneven_choice
from autosbp.sbp.groups import boxing_group, sends_gradient
from autosbp.sbp.placement import B, I, NdSbp, format_nd_sbp, without_invariants
from autosbp.sbp.rules import node_options


@dataclass(frozen=True, slots=True)
class Box:
    """Make a copy of ``ref`` in layout ``dst`` by ``steps``, for the readers in ``group``; ``data`` is cut locally."""

    ref: Ref
    group: str
    src: NdSbp
    dst: NdSbp
    steps: tuple[Step, ...]
    differentiable: bool
    data: bool = False

    @property
    def key(self) -> tuple[Ref, str, NdSbp]:
        return (self.ref, self.group, self.dst)

    @property
    def communicates(self) -> bool:
        """Whether a step sends anything, forward or backward."""
        return any(step.forward in COLLECTIVES or step.backward in COLLECTIVES for step in self.steps)

    def is_late(self, step: Step) -> bool:
        """Whether nothing in the program waits for the collective of a step: for the sum of the loss, which ends it."""
        ends = self.group == OUTPUT and step == self.steps[-1]
        return ends and (step.forward, step.backward) == ("all_reduce", "none")


@dataclass(frozen=True, slots=True)
class Op:
    """Run a node. ``reads`` are its tensor arguments: a value or the key of a ``Box``. No ``signature``: data."""

    node: Node
    reads: tuple[Ref | tuple[Ref, str, NdSbp], ...]
    signature: Signature | None


Item = Box | Op
OUTPUT, PARAMETER = "loss", "parameter"
"""Boxing groups of the loss, and of a parameter: all its readers of one layout share one copy."""


def program_items(graph: LogicalGraph, strategy: Strategy) -> Iterator[Item]:
    """Ops and boxings of one microbatch, in order; the last item boxes the loss to B on every axis. The results of a
    single call, and what a chunk of a pipeline sends on, stay in the layouts that their ops give them.

    Args:
        graph: bound at the strategy's microbatch.

    Raises:
        InputError: when the strategy does not fit the graph, names an illegal signature or lacks a path.
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
    for ref in graph.received:
        layouts[ref] = made_layout(strategy, ref)
    for parameter in () if graph.results and strategy.pipeline is None else graph.parameters:
        _check_stored(parameter, strategy)
    for node in graph.nodes:
        if node.name not in graph.computed:
            for index in range(len(node.outputs)):
                layouts[Ref(node.name, index)] = whole
            yield Op(node, tuple(node.refs()), None)
            continue
        signature = strategy.signatures.get(node.name)
        refs = tuple(node.refs())
        if signature is None or len(signature.ins) != len(refs) or len(signature.outs) != len(node.outputs):
            field = f"strategy.signatures.{node.name}"
            raise InputError(field, signature, f"layouts of {len(refs)} inputs are expected")
        check_signature(graph, node, signature, strategy)
        reads: list[Ref | tuple[Ref, str, NdSbp]] = []
        for position, (ref, wanted) in enumerate(zip(refs, signature.ins, strict=True)):
            if layouts[ref] == wanted:
                reads.append(ref)
                continue
            trains = ref.name in graph.parameter_names and node.name in graph.differentiable
            group = PARAMETER if trains else boxing_group(graph, node, position)
            box = make_box(graph, strategy, ref, group, layouts[ref], wanted)
            if box.key not in made:
                made[box.key] = True
                yield box
            reads.append(box.key)
        for index, layout in enumerate(signature.outs):
            layouts[Ref(node.name, index)] = layout
        yield Op(node, tuple(reads), signature)
    if not graph.results:
        target = (I,) * mesh.ndim
        yield make_box(graph, strategy, graph.loss, OUTPUT, layouts[graph.loss], target)


def made_layout(strategy: Strategy, ref: Ref) -> NdSbp:
    """The layout in which an op leaves a value."""
    signature = strategy.signatures.get(ref.name)
    if signature is None or ref.index >= len(signature.outs):
        raise InputError(f"strategy.signatures.{ref.name}", signature, "layouts of this op are expected")
    return signature.outs[ref.index]


def make_box(graph: LogicalGraph, strategy: Strategy, ref: Ref, group: str, src: NdSbp, dst: NdSbp) -> Box:
    """The boxing of one value; data is cut locally, computed values take the strategy's path."""
    meta, data = graph.meta(ref), ref.name not in graph.computed
    differentiable = graph.has_gradient(ref) and sends_gradient(group)
    if not differentiable:
        src = without_invariants(src)
    if src == dst:
        return Box(ref, group, src, dst, (), differentiable, data)
    if data:
        if not is_even(meta.sizes, dst, strategy.mesh):
            limit = f"an even split of {ref.name} {list(meta.sizes)} is expected"
            raise InputError("strategy", format_nd_sbp(dst), limit)
        return Box(ref, group, src, dst, (), False, True)
    route = strategy.paths.get((meta.sizes, meta.num_bytes, differentiable, src, dst))
    if route is None:
        wanted = f"{ref.name}: {format_nd_sbp(src)} -> {format_nd_sbp(dst)}"
        raise InputError("strategy.paths", wanted, "a path is expected")
    steps = []
    for one, two in zip(route, route[1:], strict=False):
        step = step_between(one, two, strategy.mesh)
        if step is None or not is_even(meta.sizes, two, strategy.mesh):
            change = f"{format_nd_sbp(one)} -> {format_nd_sbp(two)}"
            raise InputError("strategy.paths", change, "a primitive step is expected")
        steps.append(step)
    return Box(ref, group, src, dst, tuple(steps), differentiable)


def _check_stored(parameter: Parameter, strategy: Strategy) -> None:
    """Stored parameters are whole or split: of a partial one every rank would take the whole optimizer step."""
    layout = strategy.parameters.get(parameter.name)
    field, sizes = f"strategy.parameters.{parameter.name}", parameter.meta.sizes
    if layout is None or len(layout) != strategy.mesh.ndim:
        shown = None if layout is None else format_nd_sbp(layout)
        raise InputError(field, shown, f"a layout of {strategy.mesh.ndim} entries is expected")
    if any(sbp.is_partial for sbp in layout) or not is_even(sizes, layout, strategy.mesh):
        raise InputError(field, format_nd_sbp(layout), f"an even split of {list(sizes)} without P is expected")


def check_signature(graph: LogicalGraph, node: Node, signature: Signature, strategy: Strategy) -> None:
    """Each axis must be one of the op's legal layouts, and every split even."""
    field = f"strategy.signatures.{node.name}"
    metas = (*(graph.meta(ref) for ref in node.refs()), *node.outputs)
    legal = node_options(graph, node)
    # Ops of repeated blocks are checked once. The options are kept with them, so that no other has their id.
    checked = graph.derived.setdefault(("checked", strategy.mesh), {})
    if checked.get((id(legal), signature, metas)) is legal:
        return
    for layout in (*signature.ins, *signature.outs):
        if len(layout) != strategy.mesh.ndim:
            raise InputError(field, format_nd_sbp(layout), f"{strategy.mesh.ndim} entries are expected")
    choices = axis_choices(graph, node, signature, strategy.mesh.ndim)
    uneven = uneven_choice(choices, strategy.mesh)
    if uneven is not None:
        raise InputError(field, str(signature), f"axes that divide the {uneven.size} of {uneven.factor} are expected")
    for meta, layout in zip(metas, (*signature.ins, *signature.outs), strict=True):
        if not is_even(meta.sizes, layout, strategy.mesh):
            raise InputError(field, format_nd_sbp(layout), f"an even split of {list(meta.sizes)} is expected")
    checked[id(legal), signature, metas] = legal
