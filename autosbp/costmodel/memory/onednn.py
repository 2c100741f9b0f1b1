"""Layers of LSTMs as oneDNN runs them on a CPU in float32 and bfloat16, without data: ``mkldnn_rnn_layer`` of ATen
(``aten/src/ATen/native/mkldnn/RNN.cpp``), and what oneDNN sets aside for it (``src/cpu/rnn/rnn_utils.{hpp,cpp}``).

In bfloat16 weights are copied in blocks, gates are those of one step, and gradients are made in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autosbp.costmodel.memory.autograd import Machine
from autosbp.costmodel.memory.tensors import Tensor

PAGE_BYTES, LINE_BYTES, FLOAT32 = 4096, 64, 4
GATES = 4
BLOCK, PAIR = 32, 2
"""Of weights in bfloat16: columns of a block, and rows that lie together."""
_PLANS_BYTES = 1464
"""Of one backward pass in bfloat16, whatever its sizes."""


def lstm(
    m: Machine,
    x: Tensor,
    states: Sequence[Tensor],
    of_input: Tensor,
    of_state: Tensor,
    biases: tuple[Tensor, Tensor] | None,
) -> list[Tensor]:
    """[steps, batch, features] of 4 bytes (float32) or 2 (bfloat16) -> the output, the last hidden state and the last cell
    state. Where there are no biases, ATen makes zeros as large as the weights for them."""
    steps, batch, features = x.shape
    hidden, width = of_state.shape[1], x.width
    weights = [of_input, of_state, *(biases or (m.like(of_input), m.like(of_state)))]
    outs = [m.new((steps, batch, hidden), width), m.new((batch, hidden), width), m.new((batch, hidden), width)]
    bias = m.new((GATES * hidden,), width)
    workspace = m.new((_pages(_workspace(steps, batch, features, hidden, width)),), 1)
    copies = _turned(m, features, hidden) if width == FLOAT32 else _blocked(m, features, hidden)
    inside = [*copies, m.new((_pages(_scratch(steps, batch, hidden, width)),), 1)]
    del copies, inside, bias
    inputs = [x, *states, *weights]
    shapes = [None if each.node is None else each.shape for each in inputs]

    # Backward copies a state of cells that shares its storage with the hidden state, as zeros for both do.
    shared = states[0].storage is states[1].storage

    def run(grads: list[Any], kept: Sequence[Any]) -> list[Tensor | None]:
        whole = [m.like(grad) for grad in grads[:1] if grad is not None and not grad.is_contiguous]
        zeros = [m.new((batch, hidden), width) for grad in grads[1:] if grad is None]
        bias = m.new((GATES * hidden,), width)
        found = [None if shape is None else m.new(shape, FLOAT32) for shape in shapes[:6]]
        copied = [m.new((batch, hidden), width)] if shared else []
        # These gradients are made even where nothing asks for them; and one more of a bias, in oneDNN's order.
        beside = [m.new(each.shape, FLOAT32) for each, shape in zip(kept, shapes[:3], strict=False) if shape is None]
        beside.append(m.new((GATES * hidden,), FLOAT32))
        copies = _aligned(m, features, hidden) if width == FLOAT32 else _blocked_back(m, features, hidden)
        if width != FLOAT32:  # gradients of the outputs
            copies += [m.new(shape, FLOAT32) for shape in ((steps, batch, hidden), (batch, hidden), (batch, hidden))]
        scratch = _scratch(steps, batch, hidden, width, backward=True)
        extra = 0 if width == FLOAT32 else _whole(batch, PAIR) * (width * (features + hidden) + 128) + _PLANS_BYTES
        inside = [*copies, *_turned(m, features, hidden), m.new((_pages(scratch) + extra,), 1)]
        del copies, inside, beside
        found.append(None if shapes[6] is None else m.new(shapes[6], FLOAT32))
        del whole, zeros, bias, copied
        return _narrowed(m, found, width)

    m.record(outs, inputs, [*inputs, *outs, workspace], run)
    return outs


def _narrowed(m: Machine, found: list[Tensor | None], width: int) -> list[Tensor | None]:
    """Gradients as wide as what they are of, one by one."""
    if width == FLOAT32:
        return found
    for at, each in enumerate(found):
        found[at] = None if each is None else m.new(each.shape, width)
    return found


def _whole(size: int, of: int) -> int:
    return -(-size // of) * of


def _row_elements(columns: int, width: int = FLOAT32) -> int:
    """``get_good_ld``: rows begin at cache lines, and not all at the same place of a page."""
    row = _whole(columns, LINE_BYTES // width)
    return row + LINE_BYTES // width if row % 256 == 0 else row


def _pages(sizes: Sequence[int]) -> int:
    """Bytes of buffers of so many bytes, of which each begins at a page."""
    end = 0
    for size in sizes:
        end = _whole(end, PAGE_BYTES) + size
    return end


def _workspace(steps: int, batch: int, features: int, hidden: int, width: int) -> list[int]:
    """``set_workspace_sizes``: gates, outputs of cells, states, states of cells, and gradients of all three."""
    rows, states, widest = steps * batch, 2 * (steps + 1) * batch, max(features, hidden)
    grads = FLOAT32 * states * _row_elements(widest)
    return [
        width * rows * _row_elements(GATES * hidden, width), width * rows * _row_elements(hidden, width),
        width * states * _row_elements(widest, width), width * states * hidden, grads, grads, FLOAT32 * states * hidden, 0,
    ]  # fmt: skip


def _scratch(steps: int, batch: int, hidden: int, width: int, *, backward: bool = False) -> list[int]:
    """The same, of what no pass leaves: gates of all steps, or of one in bfloat16, outputs of cells and their gradients; and
    the first page is found in one more."""
    rows, of_gates = (steps * batch, FLOAT32) if width == FLOAT32 else (batch, width if backward else FLOAT32)
    gates = of_gates * rows * _row_elements(GATES * hidden, of_gates)
    own = [each * batch * _row_elements(hidden, each) for each in (width, FLOAT32)]
    return [gates, *own, PAGE_BYTES]


def _turned(m: Machine, features: int, hidden: int) -> list[Tensor]:
    """Copies of both weights, or of their gradients, in which gates are the columns."""
    return [m.new((size, _row_elements(GATES * hidden)), FLOAT32) for size in (features, hidden)]


def _aligned(m: Machine, features: int, hidden: int) -> list[Tensor]:
    """Copies of those weights whose rows do not begin at cache lines."""
    return [
        m.new((GATES * hidden, _row_elements(size)), FLOAT32)
        for size in (features, hidden)
        if _row_elements(size) != size
    ]


def _blocked(m: Machine, features: int, hidden: int) -> list[Tensor]:
    """Copies of both weights in bfloat16, in blocks of gates."""
    return [m.new((_whole(size, PAIR), GATES * _whole(hidden, BLOCK)), 2) for size in (features, hidden)]


def _blocked_back(m: Machine, features: int, hidden: int) -> list[Tensor]:
    """The same for backward, in blocks of what they are multiplied with."""
    return [m.new((GATES * _whole(hidden, PAIR), _whole(size, BLOCK)), 2) for size in (features, hidden)]
