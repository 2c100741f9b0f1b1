"""Recurrent layers on meta tensors: ATen's steps on a CPU (``aten/src/ATen/native/RNN.cpp``).

The input matmuls of all steps are one; each step adds to its part and writes gates in place. oneDNN runs LSTMs in
float32 and bfloat16 instead (``costmodel.memory.onednn``), bfloat16 as on every processor with AVX-512. On CUDA, cuDNN
runs recurrent layers; its reserve space is not public, so ATen's steps stand in for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from autosbp.costmodel.memory import onednn
from autosbp.costmodel.memory.autograd import GradientLeaf, MetaAutograd
from autosbp.costmodel.memory.matmul import linear
from autosbp.costmodel.memory.meta_tensors import PARAMETERS, TEMPORARY, MemoryMeter, MetaTensor, Shape, contiguous
from autosbp.costmodel.memory.norms_and_lookups import split_views, unbind
from autosbp.costmodel.memory.pointwise import UNARY, binary, dropped, unary
from autosbp.costmodel.memory.views import cat, contiguous_copy, transpose
from autosbp.graph.ir import Node

FUSED = ("float32", "bfloat16")
States = Sequence[MetaTensor]
Cell = Callable[[MetaAutograd, MetaTensor, States, "RnnWeights"], States]
"""(autograd, input matmul of a step, states, weights) -> new states, the first of which is the output."""


@dataclass(frozen=True, slots=True)
class RnnWeights:
    """Weights of one direction of a layer: of the input [gates x hidden, features], of the state, and both biases or None."""

    of_input: MetaTensor
    of_state: MetaTensor
    biases: tuple[MetaTensor, MetaTensor] | None

    def bias(self, at: int) -> MetaTensor | None:
        return None if self.biases is None else self.biases[at]


@dataclass(frozen=True, slots=True)
class RnnLayers:
    """Settings of a recurrent call; ``fused`` if oneDNN runs it on a CPU."""

    cell: Cell
    num_states: int
    has_biases: bool
    drops: bool
    num_directions: int
    batch_first: bool
    fused: bool

    @property
    def num_weights(self) -> int:
        return 4 if self.has_biases else 2


def layers_of(node: Node, num_tensors: int) -> RnnLayers | None:
    """Settings of a node with ``num_tensors`` inputs; None if it is no recurrent layer, or one with projected states."""
    if node.op not in CELLS:
        return None
    cell, num_states = CELLS[node.op]
    biases, count, dropout, trains, twice, batch_first = node.args[3:9]
    fused = cell is _lstm and node.outputs[0].dtype in FUSED
    found = RnnLayers(cell, num_states, biases, trains and dropout > 0, 1 + twice, batch_first, fused)
    return found if num_tensors == 1 + num_states + count * (1 + twice) * found.num_weights else None


def recurrent(m: MetaAutograd, call: RnnLayers, ins: Sequence[MetaTensor]) -> list[MetaTensor]:
    """The output of all steps and the last states [layers x directions, batch, hidden]."""
    x = transpose(m, ins[0], 0, 1) if call.batch_first else ins[0]
    firsts = list(zip(*(unbind(m, state) for state in ins[1 : 1 + call.num_states]), strict=True))
    weights = _weights(call, ins[1 + call.num_states :])
    fused = call.fused and m.device == "cpu"
    x = contiguous_copy(m, x) if fused else x
    last: list[States] = []
    for at in range(0, len(weights), call.num_directions):
        outs = []
        for direction in range(call.num_directions):
            own, states = weights[at + direction], firsts[at + direction]
            if fused:
                out, *ends = onednn.lstm(m, x, states, own.of_input, own.of_state, own.biases)
            else:
                out, *ends = _run_direction(m, call.cell, x, states, own, backwards=direction > 0)
            outs.append(out)
            last.append(ends)
        shape = (*x.shape[:2], sum(out.shape[2] for out in outs))
        x = cat(m, outs, shape, x.width) if len(outs) > 1 else outs[0]
        del outs, out
        if call.drops and at + call.num_directions < len(weights):
            x = dropped(m, x)
    ended = [_stacked(m, [ends[state] for ends in last]) for state in range(call.num_states)]
    return [transpose(m, x, 0, 1) if call.batch_first else x, *ended]


@lru_cache(maxsize=4096)
def saved_bytes(
    call: RnnLayers, shapes: tuple[Shape, ...], width: int, saved: tuple[int, ...], saves_output: bool
) -> int:
    """Bytes that autograd saves on a CPU for inputs of these shapes, with elements of ``width`` bytes.

    Excludes parameters, the ``saved`` inputs and, with ``saves_output``, the output.
    """
    m, others = MetaAutograd(MemoryMeter()), 1 + call.num_states
    ins = [m.new(shape, width, purpose=TEMPORARY if at < others else PARAMETERS) for at, shape in enumerate(shapes)]
    for each in (ins[0], *ins[others:]):
        each.node = GradientLeaf(lambda _: None)
    out = recurrent(m, call, ins)[0]
    known = [ins[at] for at in saved if at < others] + ([out] if saves_output else [])
    return m.meter.kept - sum(each.storage.num_bytes for each in known if each.storage.saved)


def _weights(call: RnnLayers, tensors: Sequence[MetaTensor]) -> list[RnnWeights]:
    found = []
    for at in range(0, len(tensors), call.num_weights):
        of_input, of_state, *biases = tensors[at : at + call.num_weights]
        found.append(RnnWeights(of_input, of_state, (biases[0], biases[1]) if biases else None))
    return found


def _run_direction(
    m: MetaAutograd, cell: Cell, x: MetaTensor, states: States, weights: RnnWeights, *, backwards: bool
) -> list[MetaTensor]:
    """Run one direction of a layer; returns the stacked outputs of its steps, then its last states."""
    steps = unbind(m, linear(m, x, weights.of_input, weights.bias(0)))
    made = []
    for step in reversed(steps) if backwards else steps:
        states = cell(m, step, states, weights)
        made.append(states[0])
    return [_stacked(m, made[::-1] if backwards else made), *states]


def _plain(name: str) -> Cell:
    def cell(m: MetaAutograd, step: MetaTensor, states: States, weights: RnnWeights) -> States:
        total = _add_(m, linear(m, states[0], weights.of_state, weights.bias(1)), step)
        return [unary(m, total, UNARY[name])]

    return cell


def _gru(m: MetaAutograd, step: MetaTensor, states: States, weights: RnnWeights) -> States:
    (hidden,) = states
    given = _gates(m, step, 3)
    own = _gates(m, linear(m, hidden, weights.of_state, weights.bias(1)), 3)
    reset = _activation_(m, _add_(m, own[0], given[0]))
    update = _activation_(m, _add_(m, own[1], given[1]))
    new = _activation_(m, binary(m, "aten.add.Tensor", given[2], _mul_(m, own[2], reset), step.width))
    return [_add_(m, _mul_(m, binary(m, "aten.sub.Tensor", hidden, new, step.width), update), new)]


def _lstm(m: MetaAutograd, step: MetaTensor, states: States, weights: RnnWeights) -> States:
    hidden, cell = states
    gates = _gates(m, _add_(m, linear(m, hidden, weights.of_state, weights.bias(1)), step), 4)
    given, forget, new, out = (_activation_(m, gate) for gate in gates)
    kept = binary(m, "aten.mul.Tensor", forget, cell, step.width)
    cell = _add_(m, kept, binary(m, "aten.mul.Tensor", given, new, step.width))
    return [binary(m, "aten.mul.Tensor", out, unary(m, cell, UNARY["aten.tanh.default"]), step.width), cell]


CELLS: Mapping[str, tuple[Cell, int]] = {
    "aten.rnn_tanh.input": (_plain("aten.tanh.default"), 1),
    "aten.rnn_relu.input": (_plain("aten.relu.default"), 1),
    "aten.gru.input": (_gru, 1),
    "aten.lstm.input": (_lstm, 2),
}
"""Cell function and number of states by op."""


def _gates(m: MetaAutograd, x: MetaTensor, count: int) -> list[MetaTensor]:
    """``unsafe_chunk``: blocks of columns."""
    return split_views(m, x, [(x.shape[0], x.shape[1] // count)] * count, x.strides)


def _stacked(m: MetaAutograd, rows: Sequence[MetaTensor]) -> MetaTensor:
    """``stack`` along the first dim: each gradient is a view of the full one."""
    count, shape = len(rows), rows[0].shape
    out = m.new((count, *shape), rows[0].width)
    m.record([out], rows, [], lambda grads, _: [grads[0].view(shape, contiguous(shape)) for _ in range(count)])
    return out


def _in_place_result(x: MetaTensor) -> MetaTensor:
    """Result of an op that writes into ``x``."""
    return MetaTensor(x.storage, x.shape, x.strides, x.width)


def _add_(m: MetaAutograd, x: MetaTensor, other: MetaTensor) -> MetaTensor:
    """``add_``: passes the gradient on."""
    out, flows = _in_place_result(x), [x.node is not None, other.node is not None]
    m.record([out], [x, other], [], lambda grads, _: [grads[0] if flow else None for flow in flows])
    return out


def _activation_(m: MetaAutograd, x: MetaTensor) -> MetaTensor:
    """``sigmoid_`` and ``tanh_``: saves the result."""
    out = _in_place_result(x)
    m.record([out], [x], [out], lambda grads, _: [m.empty_like(grads[0])])
    return out


def _mul_(m: MetaAutograd, x: MetaTensor, by: MetaTensor) -> MetaTensor:
    """``mul_``: saves the factor and a copy of the overwritten input."""
    before, out = m.empty_like(x), _in_place_result(x)
    m.record([out], [x, by], [before, by], lambda grads, _: [m.empty_like(grads[0]), m.empty_like(grads[0])])
    return out
