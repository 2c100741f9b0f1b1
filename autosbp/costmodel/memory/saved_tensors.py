"""Tensors that autograd saves for the backward of each op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from autosbp.costmodel.memory import recurrent
from autosbp.graph.custom_functions import ScanBody, scan_of
from autosbp.graph.discovered_rules import OUTPUT
from autosbp.graph.ir import DTYPE_BYTES, LogicalGraph, Node

SAVED: Mapping[str, str] = {
    "aten.linear.default": "01",
    "aten.mm.default": "01",
    "aten.bmm.default": "01",
    "aten.addmm.default": "12",
    "aten.matmul.default": "01",
    "aten.conv2d.default": "01",
    "aten.max_pool2d.default": "0o",
    "aten.layer_norm.default": "0",
    "aten.rms_norm.default": "0",
    "aten.group_norm.default": "0",
    "aten.batch_norm.default": "0",
    "aten.scaled_dot_product_attention.default": "012o",
    "aten.amax.default": "0o",
    "aten.amin.default": "0o",
    "aten.max.default": "0o",
    "aten.min.default": "0o",
    "aten.logsumexp.default": "0o",
    "aten.softmax.int": "o",
    "aten.log_softmax.int": "o",
    "aten.embedding.default": "1",
    "aten.gather.default": "1",
    "aten.gelu.default": "0",
    "aten.silu.default": "0",
    "aten.pow.Tensor_Scalar": "0",
    "aten.mul.Tensor": "01",
    "aten.div.Tensor": "1",
    "aten.relu.default": "o",
    "aten.tanh.default": "o",
    "aten.sigmoid.default": "o",
    "aten.exp.default": "o",
    "aten.rsqrt.default": "o",
    "aten.log.default": "0",
    "aten.dropout.default": "o",
    "aten.masked_fill.Scalar": "1",
    **dict.fromkeys(
        (f"aten.{name}.default" for name in ("maximum", "minimum", "fmax", "fmin", "atan2", "logaddexp")), "01"
    ),
    "aten.hypot.default": "01o",
    "aten.pow.Tensor_Tensor": "01o",
    "aten.clamp.Tensor": "012",
    **dict.fromkeys((f"aten.{name}_loss.default" for name in ("mse", "smooth_l1", "huber")), "01"),
    "aten.soft_margin_loss.default": "01",
    "aten.binary_cross_entropy.default": "012",
    "aten.binary_cross_entropy_with_logits.default": "0123",
    "aten.kl_div.default": "1",
    **dict.fromkeys(
        (f"aten.{name}" for name in ("xlogy.Tensor", "div.Tensor_mode", "mv.default", "dot.default")), "01"
    ),
    "aten.outer.default": "01",
    **dict.fromkeys((f"aten.conv_transpose{dims}" for dims in ("1d.default", "2d.input", "3d.input")), "01"),
    **dict.fromkeys((f"aten.{name}.default" for name in ("addcmul", "addcdiv", "baddbmm", "addbmm", "addmv")), "12"),
    "aten.lerp.Tensor": "012",
    "aten.masked_fill.Tensor": "1",
    **dict.fromkeys(
        (f"aten.{kind}_pad{dims}d.default" for kind in ("reflection", "replication") for dims in "123"), "0"
    ),
    **dict.fromkeys(("aten.glu.default", "aten.var.dim", "aten.var.correction"), "0"),
    **dict.fromkeys((f"aten.{name}.default" for name in ("cumprod", "logcumsumexp", "linalg_vector_norm")), "0o"),
    **dict.fromkeys(
        (f"aten.{name}" for name in ("std.dim", "std.correction", "prod.dim_int", "copysign.Tensor")), "0o"
    ),
    "aten.norm.ScalarOpt_dim": "0o",
    **dict.fromkeys((f"aten.scatter.{kind}" for kind in ("src", "value")), "1"),
    "aten.scatter_reduce.two": "012o",
}
"""Tensors that an op saves for backward: digits are inputs, ``o`` is the output (torch's derivatives.yaml)."""


def saved_inputs(graph: LogicalGraph, node: Node) -> tuple[int, ...]:
    """Positions of the saved inputs, by ``SAVED``, else by the graph's rule; of a scan, without its first states."""
    scan = scan_of(node.op)
    if scan is not None:
        return tuple(at for at in _saved_by_scan(graph, node, scan) if at >= scan.carries)
    if node.rule and node.op not in SAVED:
        return tuple(position for position in graph.rules[node.rule].saved if position >= 0)
    return tuple(int(letter) for letter in SAVED.get(node.op, "") if letter.isdigit())


def workspace_bytes(graph: LogicalGraph, node: Node, shapes: Sequence[Sequence[int]]) -> int:
    """Bytes saved in addition to inputs and output, for inputs of these shapes.

    For a recurrent layer these follow from its steps, for a scan they are its states before each step, else they follow
    from the graph's rule.
    """
    scan = scan_of(node.op)
    if scan is not None:
        widths = [DTYPE_BYTES[graph.meta(ref).dtype] for ref in node.refs()]
        states = [at for at in _saved_by_scan(graph, node, scan) if at < scan.carries]
        return int(shapes[scan.carries][0]) * sum(widths[at] * prod(shapes[at]) for at in states)
    if not node.rule or node.op in SAVED:
        return 0
    layers = recurrent.layers_of(node, len(shapes))
    width = DTYPE_BYTES[node.outputs[0].dtype]
    if layers is not None:
        whole = tuple(tuple(shape) for shape in shapes)
        return recurrent.saved_bytes(layers, whole, width, saved_inputs(graph, node), saves_output(graph, node))
    rule = graph.rules[node.rule]
    return round(rule.workspace * prod(shapes[tensor][dim] for tensor, dim in rule.workspace_sizes)) * width


def _saved_by_scan(graph: LogicalGraph, node: Node, scan: ScanBody) -> tuple[int, ...]:
    """Arguments that backward of a scan reads."""
    return scan.saved([at for at, ref in enumerate(node.refs()) if graph.has_gradient(ref)])


def saves_output(graph: LogicalGraph, node: Node) -> bool:
    """Whether the first output is saved, by ``SAVED``, else by the graph's rule."""
    if node.rule and node.op not in SAVED and scan_of(node.op) is None:
        return OUTPUT in graph.rules[node.rule].saved
    return "o" in SAVED.get(node.op, "")
