"""LSTM layers on meta tensors, as oneDNN runs them on a CPU in float32 and bfloat16.

Mirrors ``mkldnn_rnn_layer`` of ATen (``aten/src/ATen/native/mkldnn/RNN.cpp``) and the buffers that oneDNN allocates for
it (``src/cpu/rnn/rnn_utils.{hpp,cpp}``). In bfloat16, weights are copied in blocks, gates are those of one step, and
gradients are computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autosbp.costmodel.memory.autograd import MetaAutograd
from autosbp.costmodel.memory.meta_tensors import MetaTensor

PAGE_BYTES, LINE_BYTES, FLOAT32 = 4096, 64, 4
GATES = 4
BLOCK, PAIR = 32, 2
"""Layout of bfloat16 weights: columns per block, and rows stored together."""
_PLANS_BYTES = 1464
"""Bytes of plans per backward pass in bfloat16, independent of sizes."""


def lstm(
    m: MetaAutograd,
    x: MetaTensor,
    states: Sequence[MetaTensor],
    of_input: MetaTensor,
    of_state: MetaTensor,
    biases: tuple[MetaTensor, MetaTensor] | None,
) -> list[MetaTensor]:
    """Run one layer.

    Args:
        x: [steps, batch, features] of 4 bytes (float32) or 2 (bfloat16).
        biases: if None, ATen allocates zeros as large as the weights for them.

    Returns:
        The output, the last hidden state and the last cell state.
    """
    steps, batch, features = x.shape
    hidden, width = of_state.shape[1], x.width
    weights = [of_input, of_state, *(biases or (m.empty_like(of_input), m.empty_like(of_state)))]
    outs = [m.new((steps, batch, hidden), width), m.new((batch, hidden), width), m.new((batch, hidden), width)]
    bias = m.new((GATES * hidden,), width)
    workspace = m.new((_pages(_workspace(steps, batch, features, hidden, width)),), 1)
    copies = _transposed_weights(m, features, hidden) if width == FLOAT32 else _blocked_weights(m, features, hidden)
    inside = [*copies, m.new((_pages(_scratch(steps, batch, hidden, width)),), 1)]
    del copies, inside, bias
    inputs = [x, *states, *weights]
    shapes = [None if each.node is None else each.shape for each in inputs]

    # Backward copies the cell state if it shares its storage with the hidden state, as with zeros for both.
    shared = states[0].storage is states[1].storage

    def run(grads: list[Any], kept: Sequence[Any]) -> list[MetaTensor | None]:
        whole = [m.empty_like(grad) for grad in grads[:1] if grad is not None and not grad.is_contiguous]
        zeros = [m.new((batch, hidden), width) for grad in grads[1:] if grad is None]
        bias = m.new((GATES * hidden,), width)
        found = [None if shape is None else m.new(shape, FLOAT32) for shape in shapes[:6]]
        copied = [m.new((batch, hidden), width)] if shared else []
        # oneDNN computes these gradients even if nothing needs them, and one more bias gradient, in its own order.
        beside = [m.new(each.shape, FLOAT32) for each, shape in zip(kept, shapes[:3], strict=False) if shape is None]
        beside.append(m.new((GATES * hidden,), FLOAT32))
        copies = _aligned(m, features, hidden) if width == FLOAT32 else _blocked_back(m, features, hidden)
        if width != FLOAT32:  # gradients of the outputs
            copies += [m.new(shape, FLOAT32) for shape in ((steps, batch, hidden), (batch, hidden), (batch, hidden))]
        scratch = _scratch(steps, batch, hidden, width, backward=True)
        extra = 0 if width == FLOAT32 else _round_up(batch, PAIR) * (width * (features + hidden) + 128) + _PLANS_BYTES
        inside = [*copies, *_transposed_weights(m, features, hidden), m.new((_pages(scratch) + extra,), 1)]
        del copies, inside, beside
        found.append(None if shapes[6] is None else m.new(shapes[6], FLOAT32))
        del whole, zeros, bias, copied
        return _cast_gradients(m, found, width)

    m.record(outs, inputs, [*inputs, *outs, workspace], run)
    return outs


def _cast_gradients(m: MetaAutograd, found: list[MetaTensor | None], width: int) -> list[MetaTensor | None]:
    """Cast gradients to the width of their inputs, one by one."""
    if width == FLOAT32:
        return found
    for at, each in enumerate(found):
        found[at] = None if each is None else m.new(each.shape, width)
    return found


def _round_up(size: int, of: int) -> int:
    return -(-size // of) * of


def _row_elements(columns: int, width: int = FLOAT32) -> int:
    """``get_good_ld``: rows start at cache lines, and not all at the same offset in a page."""
    row = _round_up(columns, LINE_BYTES // width)
    return row + LINE_BYTES // width if row % 256 == 0 else row


def _pages(sizes: Sequence[int]) -> int:
    """Total bytes of buffers of these sizes, each of which starts at a page."""
    end = 0
    for size in sizes:
        end = _round_up(end, PAGE_BYTES) + size
    return end


def _workspace(steps: int, batch: int, features: int, hidden: int, width: int) -> list[int]:
    """``set_workspace_sizes``: gates, cell outputs, states, cell states, and gradients of all three."""
    rows, states, widest = steps * batch, 2 * (steps + 1) * batch, max(features, hidden)
    grads = FLOAT32 * states * _row_elements(widest)
    return [
        width * rows * _row_elements(GATES * hidden, width), width * rows * _row_elements(hidden, width),
        width * states * _row_elements(widest, width), width * states * hidden, grads, grads, FLOAT32 * states * hidden, 0,
    ]  # fmt: skip


def _scratch(steps: int, batch: int, hidden: int, width: int, *, backward: bool = False) -> list[int]:
    """The same for scratch memory: gates of all steps (or of one in bfloat16), cell outputs and their gradients.

    One more page allows aligning the first buffer to a page.
    """
    rows, of_gates = (steps * batch, FLOAT32) if width == FLOAT32 else (batch, width if backward else FLOAT32)
    gates = of_gates * rows * _row_elements(GATES * hidden, of_gates)
    own = [each * batch * _row_elements(hidden, each) for each in (width, FLOAT32)]
    return [gates, *own, PAGE_BYTES]


def _transposed_weights(m: MetaAutograd, features: int, hidden: int) -> list[MetaTensor]:
    """Transposed copies of both weights, or of their gradients, with gates as columns."""
    return [m.new((size, _row_elements(GATES * hidden)), FLOAT32) for size in (features, hidden)]


def _aligned(m: MetaAutograd, features: int, hidden: int) -> list[MetaTensor]:
    """Copies of the weights whose rows do not start at cache lines."""
    return [
        m.new((GATES * hidden, _row_elements(size)), FLOAT32)
        for size in (features, hidden)
        if _row_elements(size) != size
    ]


def _blocked_weights(m: MetaAutograd, features: int, hidden: int) -> list[MetaTensor]:
    """bfloat16 copies of both weights, in blocks of gates."""
    return [m.new((_round_up(size, PAIR), GATES * _round_up(hidden, BLOCK)), 2) for size in (features, hidden)]


def _blocked_back(m: MetaAutograd, features: int, hidden: int) -> list[MetaTensor]:
    """bfloat16 copies of both weights for backward, in blocks of input features or hidden units."""
    return [m.new((GATES * _round_up(hidden, PAIR), _round_up(size, BLOCK)), 2) for size in (features, hidden)]
