"""Layers of LSTMs in float32 as oneDNN runs them on a CPU, without data: ``mkldnn_rnn_layer`` of ATen
(``aten/src/ATen/native/mkldnn/RNN.cpp``), and what oneDNN sets aside for it (``src/cpu/rnn/rnn_utils.{hpp,cpp}``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autosbp.costmodel.memory.autograd import Machine
from autosbp.costmodel.memory.tensors import Tensor

PAGE_BYTES, LINE_BYTES, WIDTH = 4096, 64, 4
GATES = 4


def lstm(
    m: Machine,
    x: Tensor,
    states: Sequence[Tensor],
    of_input: Tensor,
    of_state: Tensor,
    biases: tuple[Tensor, Tensor] | None,
) -> list[Tensor]:
    """[steps, batch, features] -> the output, the last hidden state and the last cell state. Where there are no biases, ATen
    makes zeros as large as the weights for them."""
    steps, batch, features = x.shape
    hidden = of_state.shape[1]
    weights = [of_input, of_state, *(biases or (m.like(of_input), m.like(of_state)))]
    outs = [m.new((steps, batch, hidden), WIDTH), m.new((batch, hidden), WIDTH), m.new((batch, hidden), WIDTH)]
    scratch = _pages(_scratch(steps, batch, hidden))
    bias = m.new((GATES * hidden,), WIDTH)
    workspace = m.new((_pages(_workspace(steps, batch, features, hidden)),), 1)
    inside = [*_turned(m, features, hidden), m.new((scratch,), 1)]
    del inside, bias
    inputs = [x, *states, *weights]
    shapes = [None if each.node is None else each.shape for each in inputs]

    # Backward copies a state of cells that shares its storage with the hidden state, as zeros for both do.
    shared = states[0].storage is states[1].storage

    def run(grads: list[Any], kept: Sequence[Any]) -> list[Tensor | None]:
        whole = [m.like(grad) for grad in grads[:1] if grad is not None and not grad.is_contiguous]
        zeros = [m.new((batch, hidden), WIDTH) for grad in grads[1:] if grad is None]
        bias = m.new((GATES * hidden,), WIDTH)
        found = [None if shape is None else m.new(shape, WIDTH) for shape in shapes[:6]]
        copied = [m.new((batch, hidden), WIDTH)] if shared else []
        # These gradients are made even where nothing asks for them; and one more of a bias, in oneDNN's order.
        beside = [m.like(each) for each, shape in zip(kept, shapes[:3], strict=False) if shape is None]
        beside.append(m.new((GATES * hidden,), WIDTH))
        inside = [*_aligned(m, features, hidden), *_turned(m, features, hidden), m.new((scratch,), 1)]
        del inside, beside
        found.append(None if shapes[6] is None else m.new(shapes[6], WIDTH))
        del whole, zeros, bias, copied
        return found

    m.record(outs, inputs, [*inputs, *outs, workspace], run)
    return outs


def _row_elements(columns: int) -> int:
    """``get_good_ld``: rows begin at cache lines, and not all at the same place of a page."""
    line = LINE_BYTES // WIDTH
    row = -(-columns // line) * line
    return row + line if row % 256 == 0 else row


def _pages(sizes: Sequence[int]) -> int:
    """Bytes of buffers of so many elements, of which each begins at a page."""
    end = 0
    for size in sizes:
        end = -(-end // PAGE_BYTES) * PAGE_BYTES + size * WIDTH
    return end


def _workspace(steps: int, batch: int, features: int, hidden: int) -> list[int]:
    """``set_workspace_sizes``: gates, outputs of cells, states, states of cells, and gradients of all three."""
    rows, states = steps * batch, 2 * (steps + 1) * batch
    wide = states * _row_elements(max(features, hidden))
    cells = states * hidden
    return [
        rows * _row_elements(GATES * hidden), rows * _row_elements(hidden), wide, cells, wide, wide, cells, 0,
    ]  # fmt: skip


def _scratch(steps: int, batch: int, hidden: int) -> list[int]:
    """The same, of what no pass leaves: gates of all steps, outputs of cells and their gradients; and the first page is
    found in one more."""
    own = [batch * _row_elements(hidden)] * 2
    return [steps * batch * _row_elements(GATES * hidden), *own, PAGE_BYTES // WIDTH]


def _turned(m: Machine, features: int, hidden: int) -> list[Tensor]:
    """Copies of both weights, or of their gradients, in which gates are the columns."""
    return [m.new((size, _row_elements(GATES * hidden)), WIDTH) for size in (features, hidden)]


def _aligned(m: Machine, features: int, hidden: int) -> list[Tensor]:
    """Copies of those weights whose rows do not begin at cache lines."""
    return [
        m.new((GATES * hidden, _row_elements(size)), WIDTH)
        for size in (features, hidden)
        if _row_elements(size) != size
    ]
