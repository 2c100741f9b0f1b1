"""``lower``: from a logical graph and a strategy to what one rank runs, as a printable ``fx.GraphModule`` (DESIGN section 9).

The program takes (parameters in their stored layouts, whole batch tensors) in the graph's order and returns the loss,
or the results of a single call in a tuple.
It holds local ops with local sizes and explicit communication, in the order of ``sbp.program``. ``torch.compile`` takes
it: the local ops between two steps of communication are compiled together.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

import torch

from autosbp.costmodel.compute import SIZE_ARGUMENTS
from autosbp.errors import InputError
from autosbp.executor import ops
from autosbp.executor.again import recomputed
from autosbp.executor.deferred import deferred_linear
from autosbp.executor.gathering import gather_again, gathered
from autosbp.executor.split_ops import IMPLEMENTATIONS, SplitCall
from autosbp.executor.whole_batch import whole_denominator
from autosbp.graph.attributes import divided
from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.graph.materialise import constant_tensor, is_random, op_of, to_fx_arg
from autosbp.plan import Strategy
from autosbp.sbp.boxing import Step
from autosbp.sbp.choices import found_choices, implemented_axes
from autosbp.sbp.deferral import deferring
from autosbp.sbp.parameters import ParameterFlow, program_flow
from autosbp.sbp.placement import NdSbp, format_nd_sbp, local_shape, shard_index
from autosbp.sbp.program import OUTPUT, Box, Item, Op
from autosbp.sbp.recompute import ReadKey, Segment, flows_back
from autosbp.sbp.rules import RULES, sharding_of
from autosbp.sbp.sharding import AxisOption


def lower(
    graph: LogicalGraph,
    strategy: Strategy,
    rank: int,
    flow: ParameterFlow | None = None,
    *,
    defers: bool = False,
    denominators: Collection[str] = (),
) -> torch.fx.GraphModule:
    """The physical program of ``rank``.

    Args:
        graph: bound at the strategy's microbatch; a pipeline's chunk takes what it receives behind its batch tensors.
        strategy: layouts, stored parameters and boxing paths.
        rank: 0 to the mesh's size - 1.
        flow: the strategy's, where ``executor.gathering`` brings its parameters; without it the program boxes them all
            itself.
        defers: linear ops leave the gradients of their weights for later (``executor.deferred``).
        denominators: divisions by what the runtime has of the whole batch (``executor.whole_batch``).

    Raises:
        InputError: when the strategy does not fit the graph, or there is no such rank.
    """
    if not 0 <= rank < strategy.mesh.size:
        raise InputError("rank", rank, f"0 to {strategy.mesh.size - 1} is expected")
    return _Lowering(graph, strategy, rank, flow, defers, denominators).run()


@cache
def uncompiled(target: Callable[..., Any]) -> Any:
    """``target`` as a program calls it, and ``torch.compile`` leaves it alone: what communicates, draws random numbers or
    keeps a record runs as it is, in the program's order, between compiled local ops."""
    return torch.compiler.disable(target)  # type: ignore[no-untyped-call]


class _Lowering:
    def __init__(
        self,
        graph: LogicalGraph,
        strategy: Strategy,
        rank: int,
        flow: ParameterFlow | None = None,
        defers: bool = False,
        denominators: Collection[str] = (),
    ) -> None:
        self.graph, self.strategy, self.defers = graph, strategy, defers
        self.later: frozenset[str] = frozenset()
        self.denominators = frozenset(denominators)
        self.flow = flow or ParameterFlow((), (), (), frozenset())
        self.gathers = flow is not None
        self.coordinate = strategy.mesh.coordinate(rank)
        self.fx = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.values: dict[ReadKey, Any] = {}

    def run(self) -> torch.fx.GraphModule:
        if not self.gathers:
            self.flow = program_flow(self.graph, self.strategy)
        if self.defers:
            self.later = deferring(self.graph, self.strategy, self.flow)
        for name in (*(leaf.name for leaf in self.graph.parameters), *(leaf.name for leaf in self.graph.inputs)):
            self.values[Ref(name)] = self.fx.placeholder(name.replace(".", "_"))
        for ref in self.graph.received:
            self.values[ref] = self.fx.placeholder(f"received_{ref.name}_{ref.index}")
        for constant in self.graph.constants:
            attribute = constant.name.replace(".", "_")
            self.root.register_buffer(attribute, constant_tensor(constant), persistent=False)
            self.values[Ref(constant.name)] = self.fx.get_attr(attribute)
        items = self.flow.items
        begins = {segment.first: segment for segment in self.flow.segments}
        at = 0
        while at < len(items):
            if at in begins:
                self._again(begins[at])
                at = begins[at].last
            else:
                self._item(at, items[at])
            at += 1
        if self.graph.results:
            self.fx.output(tuple(self.values[ref] for ref in self.graph.results))
        else:
            last = items[-1]
            assert isinstance(last, Box) and last.group == OUTPUT
            self.fx.output(self.values[last.key])
        self.fx.lint()
        return torch.fx.GraphModule(self.root, self.fx, class_name="PhysicalProgram")

    def _item(self, at: int, item: Item) -> None:
        if isinstance(item, Box):
            self.values[item.key] = self._box(at, item)
        else:
            self._op(item)
            if at in self.flow.backward_sends:
                self.fx.call_function(uncompiled(gather_again), (self.values[Ref(item.node.name)], at))

    def _again(self, segment: Segment) -> None:
        """A module of its own for what is recomputed, and its call."""
        own = [key for key in segment.reads if isinstance(key, Ref) and key.name in segment.own]
        reads = [*own, *(key for key in segment.reads if key not in own)]
        outer, values, self.fx = self.fx, self.values, torch.fx.Graph()
        self.values = {key: self.fx.placeholder(values[key].name) for key in reads}
        for at in range(segment.first, segment.last + 1):
            self._item(at, self.flow.items[at])
        self.fx.output(tuple(self.values[key] for key in segment.makes))
        self.fx.lint()
        name = f"recomputed_{self.flow.segments.index(segment)}"
        self.root.add_module(name, torch.fx.GraphModule(self.root, self.fx, class_name="RecomputedProgram"))
        self.fx, self.values = outer, values
        gradients = tuple(flows_back(self.graph, key) for key in segment.makes)
        args = (self.fx.get_attr(name), tuple(values[key] for key in own), gradients)
        result = self.fx.call_function(
            uncompiled(recomputed), (*args, *(values[key] for key in reads[len(own) :]))
        )  # fmt: skip
        for at, key in enumerate(segment.makes):
            values[key] = self.fx.call_function(operator.getitem, (result, at))

    def _box(self, at: int, box: Box) -> Any:
        if box.key in self.flow.place:
            return self.fx.call_function(uncompiled(gathered), (box.ref.name, format_nd_sbp(box.dst), at))
        value = self.values[box.ref]
        if box.data:
            return self._cut(value, box)
        for step in box.steps:
            if self.gathers and box.is_late(step):
                value = self.fx.call_function(uncompiled(ops.all_reduce_loss), (value, step.axes))
            else:
                target, args, kwargs = _call(step, value)
                value = self.fx.call_function(uncompiled(target), args, kwargs)
        return value

    def _cut(self, value: Any, box: Box) -> Any:
        """Data is whole on every rank: a part is a local slice, a partial one is zero on all but the first rank."""
        shape = self.graph.meta(box.ref).sizes
        local = local_shape(shape, box.dst, self.strategy.mesh)
        for dim, (whole, part) in enumerate(zip(shape, local, strict=True)):
            if whole != part:
                start = part * shard_index(dim, box.dst, self.strategy.mesh, self.coordinate)
                value = self.fx.call_function(torch.narrow, (value, dim, start, part))
        if any(sbp.is_partial and place for sbp, place in zip(box.dst, self.coordinate, strict=True)):
            value = self.fx.call_function(torch.zeros_like, (value,))
        return value

    def _op(self, item: Op) -> None:
        node = item.node
        reads = iter([self.values[read] for read in item.reads])
        args = [self._argument(arg, reads) for arg in node.args]
        kwargs = {key: self._argument(arg, reads) for key, arg in node.kwargs.items()}
        target = op_of(node.op)
        if node.name in self.denominators:
            args[1] = self.fx.call_function(uncompiled(whole_denominator), (args[1], node.name))
        if item.signature is not None:
            if node.op in SIZE_ARGUMENTS:
                args[SIZE_ARGUMENTS[node.op]] = list(
                    local_shape(node.outputs[0].sizes, item.signature.outs[0], self.strategy.mesh)
                )
            choices = found_choices(self.graph, node, item.signature, self.strategy.mesh.ndim)
            for axis, choice in zip(self.strategy.mesh.axes, choices, strict=True):
                for path in choice.divided if choice is not None else ():
                    args, kwargs = divided(args, kwargs, path, axis.size)
            program = self._implemented(item, choices, args, kwargs)
            if program is not None:
                target, args, kwargs = uncompiled(program[0]), list(program[1]), {}
            elif node.name in self.later:
                target = uncompiled(deferred_linear)
        if self._is_random(node):
            shard = 0 if item.signature is None else self._shard(item.signature.outs[0])
            target, args = uncompiled(ops.drawn), [target, self.graph.positions[node.name], shard, *args]
        result: Any = self.fx.call_function(target, tuple(args), kwargs)
        for at in range(len(node.outputs)):
            one = result if len(node.outputs) == 1 else self.fx.call_function(operator.getitem, (result, at))
            self.values[Ref(node.name, at)] = one

    def _argument(self, arg: Any, reads: Any) -> Any:
        if isinstance(arg, Ref):
            return next(reads)
        if isinstance(arg, tuple):
            return [self._argument(item, reads) for item in arg]
        return to_fx_arg(arg, {})

    def _is_random(self, node: Node) -> bool:
        """As the rule says, which knows the arguments; else as torch says of the op."""
        if node.op in RULES or node.rule:
            return sharding_of(self.graph, node).random
        return is_random(node.op)

    def _shard(self, layout: NdSbp) -> int:
        """A number that replicas share and other shards do not."""
        place = 0
        for axis, sbp, at in zip(self.strategy.mesh.axes, layout, self.coordinate, strict=True):
            place = place * axis.size + (at if sbp.is_split else 0)
        return place

    def _implemented(
        self, item: Op, choices: Sequence[AxisOption | None], args: list[Any], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]] | None:
        """The call that replaces an op whose whole dim is split; None where the op itself runs."""
        assert item.signature is not None
        axes = implemented_axes(choices)
        if not axes:
            return None
        mesh, coordinate = self.strategy.mesh, self.coordinate
        return IMPLEMENTATIONS[item.node.op](
            SplitCall(self.graph, item.node, item.signature, args, kwargs, axes, mesh, coordinate)
        )


def _call(step: Step, value: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The call of one primitive step."""
    common: dict[str, Any] = {"axes": step.axes, "backward": step.backward}
    if step.reduction != "sum" and step.forward in ("all_reduce", "reduce_scatter"):
        common["reduction"] = step.reduction
    if step.forward == "all_gather":
        return ops.all_gather, (value,), {**common, "src_dim": step.src_dim}
    if step.forward == "reduce_scatter":
        return ops.reduce_scatter, (value,), {**common, "dst_dim": step.dst_dim}
    if step.forward == "all_to_all":
        return ops.all_to_all, (value,), {**common, "src_dim": step.src_dim, "dst_dim": step.dst_dim}
    if step.forward == "slice":
        return ops.slice_shard, (value,), {**common, "dst_dim": step.dst_dim}
    if step.forward == "pad":
        return ops.pad_shard, (value,), {**common, "src_dim": step.src_dim}
    target = {"all_reduce": ops.all_reduce, "mask": ops.mask, "none": ops.relabel, "p2p": ops.permute_ranks}[
        step.forward
    ]
    return target, (value,), common
