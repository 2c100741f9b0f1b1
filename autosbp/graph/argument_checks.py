"""Checks per op of arguments that torch does not validate; they do not need torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, Ref, TensorMeta

MALFORMED_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""Exceptions raised by code that reads an op's arguments, if a document has malformed ones."""
Metas = Callable[[Ref], TensorMeta]
_Check = Callable[[Node, Metas], None]


def malformed_arguments_error(node: Node, error: Exception) -> GraphError:
    """The error for arguments that do not match the op's signature."""
    return GraphError(f"{node.name}.args", node.args, f"expected valid arguments of {node.op} ({error})")


def check_arguments(node: Node, metas: Metas) -> None:
    """Refuse a call that torch accepts although it reads out of bounds or crashes the process.

    Args:
        node: the call, with the arguments of the whole op or of one rank's shard.
        metas: returns shape and dtype of a reference there.

    Raises:
        GraphError: for such a call; malformed arguments may also raise one of ``MALFORMED_ERRORS``.
    """
    check = _CHECKS.get(node.op)
    if check is not None:
        check(node, metas)


def _check_integer_division(node: Node, metas: Metas) -> None:
    """Refuse integer division that truncates: the smallest integer divided by -1 raises SIGFPE."""
    mode = node.kwargs.get("rounding_mode", node.args[2] if len(node.args) > 2 else None)
    if mode == "trunc" and not any(metas(ref).is_float for ref in node.refs()):
        raise GraphError(f"{node.name}.kwargs.rounding_mode", mode, 'expected "floor" for integers')


def _recurrent_check(gates: int, num_states: int) -> _Check:
    """Check of a recurrent layer: its kernels do not validate the shapes of states and weights.

    The arguments are ``(input, states, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first)``,
    as ``torch.nn.LSTM`` passes them for batched input.
    """

    def check(node: Node, metas: Metas) -> None:
        given, states, weights, has_biases, num_layers, _, _, two_ways, batch_first = node.args
        states = states if isinstance(states, tuple) else (states,)
        sizes = metas(given).sizes
        _expect(node, "input", sizes, len(sizes) == 3 and min(sizes) > 0, "expected three dims of at least 1")
        _expect(node, "num_layers", num_layers, type(num_layers) is int and num_layers > 0, "expected at least 1")
        _expect(node, "states", len(states), len(states) == num_states, f"expected {num_states}")
        num_runs = num_layers * (1 + bool(two_ways))
        out, hidden = (metas(state).sizes[-1] for state in (states[0], states[-1]))
        batch = sizes[0] if batch_first else sizes[1]
        wanted = [(num_runs, batch, size) for size in (out, hidden)[:num_states]]
        shapes = _layer_shapes(gates, sizes[-1], out, hidden, num_layers, bool(two_ways), bool(has_biases))
        _expect_shapes(metas, node, "states", states, wanted)
        _expect_shapes(metas, node, "weights", weights, list(shapes))

    return check


def _layer_shapes(
    gates: int, size: int, out: int, hidden: int, num_layers: int, two_ways: bool, has_biases: bool
) -> Iterator[tuple[int, ...]]:
    """Weight shapes of every layer and direction; ``out`` differs from ``hidden`` for projected outputs."""
    for layer in range(num_layers):
        for _ in range(1 + two_ways):
            yield gates * hidden, (1 + two_ways) * out if layer else size
            yield gates * hidden, out
            if has_biases:
                yield from [(gates * hidden,)] * 2
            if out != hidden:
                yield out, hidden


def _expect_shapes(metas: Metas, node: Node, what: str, refs: Any, wanted: Sequence[tuple[int, ...]]) -> None:
    found = [metas(ref) for ref in refs]
    _expect(node, what, len(found), len(found) == len(wanted), f"expected {len(wanted)} tensors")
    for at, (meta, shape) in enumerate(zip(found, wanted, strict=True)):
        _expect(node, f"{what}[{at}]", list(meta.sizes), meta.sizes == shape, f"expected {list(shape)}")
        _expect(node, f"{what}[{at}]", meta.dtype, meta.dtype == metas(node.args[0]).dtype, "expected one dtype")


def _expect(node: Node, what: str, value: Any, holds: bool, limit: str) -> None:
    if not holds:
        raise GraphError(f"{node.name}.args.{what}", value, limit)


_CHECKS: Mapping[str, _Check] = {
    "aten.div.Tensor_mode": _check_integer_division,
    "aten.div.Scalar_mode": _check_integer_division,
    "aten.divide.Tensor_mode": _check_integer_division,
    "aten.divide.Scalar_mode": _check_integer_division,
    "aten.lstm.input": _recurrent_check(4, 2),
    "aten.gru.input": _recurrent_check(3, 1),
    "aten.rnn_tanh.input": _recurrent_check(1, 1),
    "aten.rnn_relu.input": _recurrent_check(1, 1),
}
