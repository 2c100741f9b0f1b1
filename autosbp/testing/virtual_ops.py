"""Numeric check of an op's layout: the lowered op on virtual ranks against the whole op, forward and backward.

``check_option`` checks one ``AxisOption`` of a sharding rule on one axis; ``check_layouts`` checks one signature on any
mesh. Random numbers come from a fixed seed. Both raise ``AssertionError`` naming the wrong tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from autosbp.costmodel.split_ops import internal_collectives
from autosbp.costmodel.step_collectives import Collective
from autosbp.executor.lowering import _Lowering
from autosbp.executor.runtime import IssuedCollective, Runtime
from autosbp.executor.training import expected_issues
from autosbp.graph.ir import LogicalGraph, Node, Ref, TensorMeta
from autosbp.graph.to_fx import resolve_op, to_fx_arg, torch_dtype
from autosbp.plan.plan import Signature, Strategy
from autosbp.program.chosen_options import option_choices
from autosbp.program.program import Op
from autosbp.sbp.factor_notation import AxisOption, tensor_inputs
from autosbp.sbp.mesh import Mesh
from autosbp.testing.virtual import VirtualRanks, plain_mesh
from autosbp.testing.virtual_layouts import FLOAT64_TOLERANCE, assert_shards_match, gradient_layout, random_shards

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
"""Input range of ops, without overload, that are undefined or have poles outside of it; a variance is positive."""
TIE_SENSITIVE = frozenset(("amax", "amin", "max", "min"))
"""Ops that must handle ties: their inputs are rounded to integers, so that many are equal."""
FLOAT32_TOLERANCE = 1e-5
"""Tolerance of ops with float32 inputs or outputs."""


def check_option(
    graph: LogicalGraph, node: Node, option: AxisOption, axis_size: int, values: Sequence[torch.Tensor] | None = None
) -> None:
    """Check ``option`` on one axis of ``axis_size`` devices; every split must be even."""
    signature = Signature(tuple((sbp,) for sbp in option.ins), tuple((sbp,) for sbp in option.outs))
    check_layouts(graph, node, signature, plain_mesh(axis_size), values)


def check_layouts(
    graph: LogicalGraph, node: Node, signature: Signature, mesh: Mesh, values: Sequence[torch.Tensor] | None = None
) -> None:
    """Check one op in one signature on ``mesh``, on ``values`` of its tensor arguments (by default random ones).

    Outputs and input gradients must equal the whole op's, and each rank must issue the collectives that the cost model
    charges.
    """
    generator = torch.Generator().manual_seed(0)
    highs = {leaf.name: leaf.high for leaf in graph.inputs}
    inputs = (
        list(values)
        if values is not None
        else [
            _random(meta, highs.get(ref.name), node.op.split(".")[1], generator)
            for ref, meta in zip(node.refs(), tensor_inputs(graph, node), strict=True)
        ]
    )
    tracked = [ref.name in graph.differentiable and value.is_floating_point()
               for ref, value in zip(node.refs(), inputs, strict=True)]  # fmt: skip
    outputs, gradients, wanted = _whole(node, inputs, tracked, generator)
    parts = [random_shards(value, layout, mesh, generator) for value, layout in zip(inputs, signature.ins, strict=True)]
    incoming = [
        random_shards(value, gradient_layout(layout), mesh, generator)
        for value, layout in zip(gradients, signature.outs, strict=True)
    ]
    programs = [local_program(graph, node, signature, mesh, rank) for rank in range(mesh.size)]

    def work(runtime: Runtime) -> tuple[list[torch.Tensor], list[torch.Tensor], list[IssuedCollective]]:
        rank = runtime.rank
        ins = [part[rank].requires_grad_(flag) for part, flag in zip(parts, tracked, strict=True)]
        outs = programs[rank](*ins)
        found = _gradients(outs, ins, tracked, [grad[rank] for grad in incoming])
        return [out.detach() for out in outs], found, runtime.issued

    try:
        results = VirtualRanks(mesh).run(work)
    except RuntimeError as error:
        raise AssertionError(f"{node.op} {signature}: the local op fails: {error}") from error
    tolerance = (
        FLOAT64_TOLERANCE if all(value.dtype != torch.float32 for value in (*inputs, *outputs)) else FLOAT32_TOLERANCE
    )
    for at, (whole, layout) in enumerate(zip(outputs, signature.outs, strict=True)):
        what = f"{node.op} {signature}, output {at}"
        assert_shards_match([outs[at] for outs, _, _ in results], layout, mesh, whole, what, tolerance)
    layouts = [layout for layout, flag in zip(signature.ins, tracked, strict=True) if flag]
    for at, (whole, layout) in enumerate(zip(wanted, layouts, strict=True)):
        what = f"{node.op} {signature}, gradient {at}"
        assert_shards_match(
            [grads[at] for _, grads, _ in results], gradient_layout(layout), mesh, whole, what, tolerance
        )
    charged = _charged(graph, node, signature, mesh)
    for rank, (_, _, issued) in enumerate(results):
        expected = expected_issues(charged, mesh, rank)
        assert issued == expected, f"{node.op} {signature}: rank {rank} issued {issued}, not {expected}"


def _charged(graph: LogicalGraph, node: Node, signature: Signature, mesh: Mesh) -> list[Collective]:
    """Charged collectives: forward, then backward in reverse; none for a layout that the rule does not offer."""
    choices = [choice for choice in option_choices(graph, node, signature, mesh.ndim) if choice is not None]
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
        return torch.randint(0, bound, meta.sizes, generator=generator).to(torch_dtype(meta.dtype))
    if op in DOMAINS:
        low, top = DOMAINS[op]
        value = low + (top - low) * torch.rand(meta.sizes, generator=generator, dtype=torch.float64)
    else:
        value = torch.randn(meta.sizes, generator=generator, dtype=torch.float64)
    return (value.round() if op in TIE_SENSITIVE else value).to(torch_dtype(meta.dtype))


def _whole(
    node: Node, inputs: list[torch.Tensor], tracked: list[bool], generator: torch.Generator
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Outputs of the whole op, a random gradient of each, and the gradients of the tracked inputs."""
    leaves = [value.clone().requires_grad_(flag) for value, flag in zip(inputs, tracked, strict=True)]
    args, kwargs = fill_arguments(node, leaves)
    result = resolve_op(node.op)(*args, **kwargs)
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    gradients = [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype) for out in outputs]
    return [out.detach() for out in outputs], gradients, _gradients(outputs, leaves, tracked, gradients)


def fill_arguments(node: Node, tensors: Iterable[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of an op, with its tensor arguments replaced by ``tensors``, in order."""
    values = iter(tensors)

    def fill(arg: Any) -> Any:
        if isinstance(arg, Ref):
            return next(values)
        return [fill(item) for item in arg] if isinstance(arg, tuple) else to_fx_arg(arg, {})

    return [fill(arg) for arg in node.args], {key: fill(arg) for key, arg in node.kwargs.items()}


def _gradients(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], tracked: list[bool], incoming: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Gradients of the tracked inputs; zeros for inputs that get none."""
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
