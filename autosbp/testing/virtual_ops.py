"""Whether an op's layout is right: the lowered op on virtual ranks against the whole op, forward and backward.

``check_option`` proves one ``AxisOption`` of a sharding rule on one axis; ``check_layouts`` proves one signature on any
mesh. Random numbers come from a fixed seed. Both raise ``AssertionError`` that says which tensor is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from autosbp.costmodel.collectives import Collective
from autosbp.costmodel.split_ops import internal_collectives
from autosbp.executor.lowering import _Lowering
from autosbp.executor.runtime import Issued, Runtime
from autosbp.executor.training import expected_issues
from autosbp.graph.ir import LogicalGraph, Node, Ref, TensorMeta
from autosbp.graph.materialise import dtype_of, op_of, to_fx_arg
from autosbp.plan import Signature, Strategy
from autosbp.sbp.choices import found_choices
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.program import Op
from autosbp.sbp.sharding import AxisOption, tensor_inputs
from autosbp.testing.virtual import VirtualRanks, plain_mesh
from autosbp.testing.virtual_layouts import EXACT, assert_holds, gradient_layout, random_parts

_POSITIVE = (
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "pow",
    "div",
    "xlogy",
    "kl_div",
    "batch_norm",
)
_UNIT = ("acos", "asin", "atanh", "erfinv", "logit", "binary_cross_entropy")
DOMAINS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(_POSITIVE, (0.5, 3.0)),
    **dict.fromkeys(_UNIT, (0.1, 0.9)),
    "acosh": (1.5, 3.0),
}
"""Ops, without overload, that are defined on a range only, or have poles outside of it; a variance is positive."""
TIED = frozenset(("amax", "amin", "max", "min"))
"""Ops that tell equal values apart: their inputs are whole numbers, many of them equal."""
SINGLE = 1e-5
"""The tolerance of ops that take or give float32."""


def check_option(graph: LogicalGraph, node: Node, option: AxisOption, axis_size: int) -> None:
    """``option`` on one axis of ``axis_size`` devices; every split must be even."""
    signature = Signature(tuple((sbp,) for sbp in option.ins), tuple((sbp,) for sbp in option.outs))
    check_layouts(graph, node, signature, plain_mesh(axis_size))


def check_layouts(graph: LogicalGraph, node: Node, signature: Signature, mesh: Mesh) -> None:
    """One op in one signature on ``mesh``: outputs and input gradients equal the whole op's, and each rank issues the
    collectives that the cost model charges."""
    generator = torch.Generator().manual_seed(0)
    highs = {leaf.name: leaf.high for leaf in graph.inputs}
    inputs = [
        _random(meta, highs.get(ref.name), node.op.split(".")[1], generator)
        for ref, meta in zip(node.refs(), tensor_inputs(graph, node), strict=True)
    ]
    tracked = [ref.name in graph.differentiable and value.is_floating_point()
               for ref, value in zip(node.refs(), inputs, strict=True)]  # fmt: skip
    outputs, gradients, wanted = _whole(node, inputs, tracked, generator)
    parts = [random_parts(value, layout, mesh, generator) for value, layout in zip(inputs, signature.ins, strict=True)]
    incoming = [
        random_parts(value, gradient_layout(layout), mesh, generator)
        for value, layout in zip(gradients, signature.outs, strict=True)
    ]
    programs = [local_program(graph, node, signature, mesh, rank) for rank in range(mesh.size)]

    def work(runtime: Runtime) -> tuple[list[torch.Tensor], list[torch.Tensor], list[Issued]]:
        rank = runtime.rank
        ins = [part[rank].requires_grad_(flag) for part, flag in zip(parts, tracked, strict=True)]
        outs = programs[rank](*ins)
        found = _gradients(outs, ins, tracked, [grad[rank] for grad in incoming])
        return [out.detach() for out in outs], found, runtime.issued

    try:
        results = VirtualRanks(mesh).run(work)
    except RuntimeError as error:
        raise AssertionError(f"{node.op} {signature}: the local op fails: {error}") from error
    tolerance = EXACT if all(value.dtype != torch.float32 for value in (*inputs, *outputs)) else SINGLE
    for at, (whole, layout) in enumerate(zip(outputs, signature.outs, strict=True)):
        what = f"{node.op} {signature}, output {at}"
        assert_holds([outs[at] for outs, _, _ in results], layout, mesh, whole, what, tolerance)
    layouts = [layout for layout, flag in zip(signature.ins, tracked, strict=True) if flag]
    for at, (whole, layout) in enumerate(zip(wanted, layouts, strict=True)):
        what = f"{node.op} {signature}, gradient {at}"
        assert_holds([grads[at] for _, grads, _ in results], gradient_layout(layout), mesh, whole, what, tolerance)
    charged = _charged(graph, node, signature, mesh)
    for rank, (_, _, issued) in enumerate(results):
        expected = expected_issues(charged, mesh, rank)
        assert issued == expected, f"{node.op} {signature}: rank {rank} issued {issued}, not {expected}"


def _charged(graph: LogicalGraph, node: Node, signature: Signature, mesh: Mesh) -> list[Collective]:
    """Forward, then backward in reverse; a layout that the rule does not offer has none."""
    choices = [choice for choice in found_choices(graph, node, signature, mesh.ndim) if choice is not None]
    if len(choices) < mesh.ndim:
        return []
    calls = [
        Collective(call.kind, call.num_bytes, call.axes, call.phase, node.name)
        for call in internal_collectives(graph, node, choices, mesh)
    ]
    backward = [call for call in calls if call.phase == "backward"]
    return [call for call in calls if call.phase == "forward"] + backward[::-1]


def _random(meta: TensorMeta, high: int | None, op: str, generator: torch.Generator) -> torch.Tensor:
    if not meta.is_float:
        bound = 2 if meta.dtype == "bool" else high or 2
        return torch.randint(0, bound, meta.sizes, generator=generator).to(dtype_of(meta.dtype))
    if op in DOMAINS:
        low, top = DOMAINS[op]
        value = low + (top - low) * torch.rand(meta.sizes, generator=generator, dtype=torch.float64)
    else:
        value = torch.randn(meta.sizes, generator=generator, dtype=torch.float64)
    return (value.round() if op in TIED else value).to(dtype_of(meta.dtype))


def _whole(
    node: Node, inputs: list[torch.Tensor], tracked: list[bool], generator: torch.Generator
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Outputs of the whole op, a random gradient of each, and the gradients of the tracked inputs."""
    leaves = [value.clone().requires_grad_(flag) for value, flag in zip(inputs, tracked, strict=True)]
    args, kwargs = fill_arguments(node, leaves)
    result = op_of(node.op)(*args, **kwargs)
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    gradients = [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype) for out in outputs]
    return [out.detach() for out in outputs], gradients, _gradients(outputs, leaves, tracked, gradients)


def fill_arguments(node: Node, tensors: Iterable[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of an op, with these tensors where it reads one, in order."""
    values = iter(tensors)

    def fill(arg: Any) -> Any:
        if isinstance(arg, Ref):
            return next(values)
        return [fill(item) for item in arg] if isinstance(arg, tuple) else to_fx_arg(arg, {})

    return [fill(arg) for arg in node.args], {key: fill(arg) for key, arg in node.kwargs.items()}


def _gradients(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], tracked: list[bool], incoming: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Gradients of the tracked inputs; zeros where none arrives."""
    leaves = [value for value, flag in zip(inputs, tracked, strict=True) if flag]
    pairs = [(out, grad) for out, grad in zip(outputs, incoming, strict=True) if out.requires_grad]
    if not pairs or not leaves:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad([out for out, _ in pairs], leaves, [grad for _, grad in pairs], allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, found, strict=True)]


def local_program(graph: LogicalGraph, node: Node, signature: Signature, mesh: Mesh, rank: int) -> torch.fx.GraphModule:
    """The node as the executor lowers it, from its tensor arguments to a tuple of its outputs."""
    lowering = _Lowering(graph, Strategy(mesh, {node.name: signature}, {}, {}, 1, 1, "sgd"), rank)
    reads = tuple(Ref(f"input{at}") for at, _ in enumerate(node.refs()))
    for read in reads:
        lowering.values[read] = lowering.fx.placeholder(read.name)
    lowering._op(Op(node, reads, signature))
    lowering.fx.output(tuple(lowering.values[Ref(node.name, at)] for at in range(len(node.outputs))))
    return torch.fx.GraphModule(lowering.root, lowering.fx)
