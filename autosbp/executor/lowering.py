"""Lowering: from a logical graph and a strategy to one rank's program, a printable ``fx.GraphModule``.

The program takes (parameters in their stored layouts, whole batch tensors) in the graph's order and returns the loss,
or the results of a single call in a tuple. It holds local ops with local sizes and explicit communication, in the order
of ``program.program``. It works with ``torch.compile``, which compiles the local ops between two communication steps
together.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from autosbp.costmodel.compute import SIZE_ARGUMENTS
from autosbp.errors import InputError
from autosbp.executor import comm_ops
from autosbp.executor.activation_checkpointing import checkpoint
from autosbp.executor.deferred_wgrad import deferred_linear
from autosbp.executor.loss_denominators import batch_denominator
from autosbp.executor.parameter_gathers import fetch_parameter, regather_before_backward
from autosbp.executor.running_statistics import evaluated_batch_norm, trained_batch_norm
from autosbp.executor.split_ops import IMPLEMENTATIONS, SplitCall
from autosbp.graph.argument_checks import check_arguments
from autosbp.graph.custom_functions import scan_of
from autosbp.graph.int_attributes import divide_attribute
from autosbp.graph.ir import Arg, LogicalGraph, Node, Ref, TensorMeta
from autosbp.graph.to_fx import constant_tensor, is_random, resolve_op, to_fx_arg
from autosbp.plan.plan import Strategy
from autosbp.program.activation_checkpointing import ReadKey, Segment, receives_gradient
from autosbp.program.chosen_options import implemented_axes, option_choices
from autosbp.program.deferred_wgrad import deferred_linear_ops
from autosbp.program.parameter_flow import ParameterFlow, program_flow
from autosbp.program.program import LOSS_GROUP, Boxing, Item, Op
from autosbp.sbp.boxing import BoxingStep
from autosbp.sbp.factor_notation import AxisOption
from autosbp.sbp.layout import NdSbp, format_nd_sbp, local_shape, shard_index
from autosbp.sbp.rules import RULES, sharding_of


def lower(
    graph: LogicalGraph,
    strategy: Strategy,
    rank: int,
    flow: ParameterFlow | None = None,
    *,
    defers: bool = False,
    denominators: Collection[str] = (),
    statistics: Collection[str] = (),
) -> torch.fx.GraphModule:
    """The physical program of ``rank``.

    Args:
        graph: bound at the strategy's microbatch; a pipeline chunk takes received values after its batch tensors.
        strategy: layouts, stored parameters and boxing paths.
        rank: 0 to the mesh's size - 1.
        flow: the strategy's parameter flow if ``executor.parameter_gathers`` provides parameters; without it the
            program boxes them all itself.
        defers: linear ops defer their weight gradients (``executor.deferred_wgrad``).
        denominators: names of divisions by batch-wide numbers of the runtime (``executor.loss_denominators``).
        statistics: names of batch norms with running statistics (``executor.running_statistics``).

    Raises:
        InputError: the strategy does not fit the graph, or there is no such rank.
    """
    if not 0 <= rank < strategy.mesh.size:
        raise InputError("rank", rank, f"expected 0 to {strategy.mesh.size - 1}")
    return _Lowering(graph, strategy, rank, flow, defers, denominators, statistics).run()


@cache
def compile_disabled(target: Callable[..., Any]) -> Any:
    """``target`` excluded from ``torch.compile``.

    Functions that communicate, draw random numbers, keep records or run the steps of a scan run as they are, in the program's
    order, between compiled local ops.
    """
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
        statistics: Collection[str] = (),
    ) -> None:
        self.graph, self.strategy, self.defers = graph, strategy, defers
        self.later: frozenset[str] = frozenset()
        self.denominators, self.statistics = frozenset(denominators), frozenset(statistics)
        self.flow = flow or ParameterFlow((), (), (), frozenset())
        self.uses_gathers = flow is not None
        self.coordinate = strategy.mesh.coordinate(rank)
        self.fx = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.values: dict[ReadKey, Any] = {}

    def run(self) -> torch.fx.GraphModule:
        if not self.uses_gathers:
            self.flow = program_flow(self.graph, self.strategy)
        if self.defers:
            self.later = deferred_linear_ops(self.graph, self.strategy, self.flow)
        for name in (*(leaf.name for leaf in self.graph.parameters), *(leaf.name for leaf in self.graph.inputs)):
            self.values[Ref(name)] = self.fx.placeholder(name.replace(".", "_"))
        for ref in self.graph.received_refs:
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
                self._lower_segment(begins[at])
                at = begins[at].last
            else:
                self._item(at, items[at])
            at += 1
        if self.graph.results:
            self.fx.output(tuple(self.values[ref] for ref in self.graph.results))
        else:
            last = items[-1]
            assert isinstance(last, Boxing) and last.group == LOSS_GROUP
            self.fx.output(self.values[last.key])
        self.fx.lint()
        return torch.fx.GraphModule(self.root, self.fx, class_name="PhysicalProgram")

    def _item(self, at: int, item: Item) -> None:
        if isinstance(item, Boxing):
            self.values[item.key] = self._box(at, item)
        else:
            self._op(item)
            if at in self.flow.backward_gathers:
                self.fx.call_function(
                    compile_disabled(regather_before_backward), (self.values[Ref(item.node.name)], at)
                )

    def _lower_segment(self, segment: Segment) -> None:
        """Emit a submodule for a recomputed segment, and its call."""
        own = [key for key in segment.reads if isinstance(key, Ref) and key.name in segment.own]
        reads = [*own, *(key for key in segment.reads if key not in own)]
        outer, values, self.fx = self.fx, self.values, torch.fx.Graph()
        self.values = {key: self.fx.placeholder(values[key].name) for key in reads}
        for at in range(segment.first, segment.last + 1):
            self._item(at, self.flow.items[at])
        self.fx.output(tuple(self.values[key] for key in segment.outputs))
        self.fx.lint()
        name = f"recomputed_{self.flow.segments.index(segment)}"
        self.root.add_module(name, torch.fx.GraphModule(self.root, self.fx, class_name="RecomputedProgram"))
        self.fx, self.values = outer, values
        gradients = tuple(receives_gradient(self.graph, key) for key in segment.outputs)
        args = (self.fx.get_attr(name), tuple(values[key] for key in own), gradients)
        result = self.fx.call_function(
            compile_disabled(checkpoint), (*args, *(values[key] for key in reads[len(own) :]))
        )  # fmt: skip
        for at, key in enumerate(segment.outputs):
            values[key] = self.fx.call_function(operator.getitem, (result, at))

    def _box(self, at: int, box: Boxing) -> Any:
        if box.key in self.flow.place:
            return self.fx.call_function(compile_disabled(fetch_parameter), (box.ref.name, format_nd_sbp(box.dst), at))
        value = self.values[box.ref]
        if box.data:
            return self._slice_data(value, box)
        for step in box.steps:
            if self.uses_gathers and box.overlaps_backward(step):
                value = self.fx.call_function(compile_disabled(comm_ops.all_reduce_loss), (value, step.axes))
            else:
                target, args, kwargs = _call(step, value)
                value = self.fx.call_function(compile_disabled(target), args, kwargs)
        return value

    def _slice_data(self, value: Any, box: Boxing) -> Any:
        """Slice data locally, as it is whole on every rank; for P, zeros on all but the first rank."""
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
        target = resolve_op(node.op)
        if scan_of(node.op) is not None:
            target = compile_disabled(target)
        if node.name in self.denominators:
            args[1] = self.fx.call_function(compile_disabled(batch_denominator), (args[1], node.name))
        if item.signature is not None:
            if node.op in SIZE_ARGUMENTS:
                args[SIZE_ARGUMENTS[node.op]] = list(
                    local_shape(node.outputs[0].sizes, item.signature.outs[0], self.strategy.mesh)
                )
            choices = option_choices(self.graph, node, item.signature, self.strategy.mesh.ndim)
            for axis, choice in zip(self.strategy.mesh.axes, choices, strict=True):
                for path in choice.divided if choice is not None else ():
                    args, kwargs = divide_attribute(args, kwargs, path, axis.size)
            self._check_part(item, choices)
            program = self._implemented(item, choices, args, kwargs)
            if node.name in self.statistics:
                target, args = _batch_norm(node, args, () if program is None else program[1][-1])
            elif program is not None:
                target, args, kwargs = compile_disabled(program[0]), list(program[1]), {}
            elif node.name in self.later:
                target = compile_disabled(deferred_linear)
        if is_random_node(self.graph, node):
            shard = 0 if item.signature is None else self._shard(item.signature.outs[0])
            target, args = (
                compile_disabled(comm_ops.run_random_op),
                [target, self.graph.positions[node.name], shard, *args],
            )
        result: Any = self.fx.call_function(target, tuple(args), kwargs)
        for at in range(len(node.outputs)):
            one = result if len(node.outputs) == 1 else self.fx.call_function(operator.getitem, (result, at))
            self.values[Ref(node.name, at)] = one

    def _check_part(self, item: Op, choices: Sequence[AxisOption | None]) -> None:
        """Raise ``GraphError`` if the op, on this rank's part, would read out of bounds.

        Layouts of an op without a built-in rule come from the graph's document and may be wrong.
        """
        args, kwargs, mesh = item.node.args, item.node.kwargs, self.strategy.mesh
        for axis, choice in zip(mesh.axes, choices, strict=True):
            for path in choice.divided if choice is not None else ():
                args, kwargs = divide_attribute(args, kwargs, path, axis.size)
        assert item.signature is not None
        parts: list[TensorMeta] = []
        layouts = iter(item.signature.ins)

        def part(arg: Arg) -> Arg:
            if not isinstance(arg, Ref):
                return arg
            meta = self.graph.meta(arg)
            parts.append(replace(meta, shape=local_shape(meta.sizes, next(layouts), mesh)))
            return Ref(arg.name, len(parts) - 1)

        check_arguments(replace(item.node, args=args, kwargs=kwargs).map_args(part), lambda ref: parts[ref.index])

    def _argument(self, arg: Any, reads: Any) -> Any:
        if isinstance(arg, Ref):
            return next(reads)
        if isinstance(arg, tuple):
            return [self._argument(item, reads) for item in arg]
        return to_fx_arg(arg, {})

    def _shard(self, layout: NdSbp) -> int:
        """A number that replicas share and other shards do not."""
        place = 0
        for axis, sbp, at in zip(self.strategy.mesh.axes, layout, self.coordinate, strict=True):
            place = place * axis.size + (at if sbp.is_split else 0)
        return place

    def _implemented(
        self, item: Op, choices: Sequence[AxisOption | None], args: list[Any], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]] | None:
        """The call that replaces an op whose whole dim is split; None if the op itself runs."""
        assert item.signature is not None
        axes = implemented_axes(choices)
        if not axes:
            return None
        mesh, coordinate = self.strategy.mesh, self.coordinate
        return IMPLEMENTATIONS[item.node.op](
            SplitCall(self.graph, item.node, item.signature, args, kwargs, axes, mesh, coordinate)
        )


def is_random_node(graph: LogicalGraph, node: Node) -> bool:
    """Whether an op is random: by its rule, which knows the arguments, else by torch's tags."""
    return sharding_of(graph, node).random if node.op in RULES or node.rule else is_random(node.op)


def _batch_norm(node: Node, args: list[Any], axes: tuple[int, ...]) -> tuple[Any, list[Any]]:
    """The call of a batch norm with running statistics; ``axes`` split what they run over."""
    x, weight, bias, _, _, training, momentum, eps, _ = args
    if training:
        return compile_disabled(trained_batch_norm), [node.name, x, weight, bias, momentum, eps, axes]
    return compile_disabled(evaluated_batch_norm), [node.name, x, weight, bias, eps]


def _call(step: BoxingStep, value: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The call of one primitive step."""
    common: dict[str, Any] = {"axes": step.axes, "backward": step.backward}
    if step.reduction != "sum" and step.forward in ("all_reduce", "reduce_scatter"):
        common["reduction"] = step.reduction
    if step.forward == "all_gather":
        return comm_ops.all_gather, (value,), {**common, "src_dim": step.src_dim}
    if step.forward == "reduce_scatter":
        return comm_ops.reduce_scatter, (value,), {**common, "dst_dim": step.dst_dim}
    if step.forward == "all_to_all":
        return comm_ops.all_to_all, (value,), {**common, "src_dim": step.src_dim, "dst_dim": step.dst_dim}
    if step.forward == "slice":
        return comm_ops.slice_shard, (value,), {**common, "dst_dim": step.dst_dim}
    if step.forward == "pad":
        return comm_ops.pad_shard, (value,), {**common, "src_dim": step.src_dim}
    target = {
        "all_reduce": comm_ops.all_reduce,
        "mask": comm_ops.mask,
        "none": comm_ops.relabel,
        "p2p": comm_ops.permute_ranks,
    }[step.forward]
    return target, (value,), common
