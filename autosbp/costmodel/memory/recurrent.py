"""Recurrent layers without data: ATen's steps on a CPU (``aten/src/ATen/native/RNN.cpp``).

The input's products of all steps are one; a step adds to them, and writes gates into what it has made. LSTMs in float32
are run by oneDNN instead (``memory.onednn``), and those in bfloat16, as on every processor that has AVX-512. On CUDA cuDNN runs
them: what it reserves is not public, and these steps stand for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from autosbp.costmodel.memory import onednn
from autosbp.costmodel.memory.autograd import Leaf, Machine
from autosbp.costmodel.memory.layers import parts, unbound
from autosbp.costmodel.memory.pointwise import UNARY, binary, dropped, unary
from autosbp.costmodel.memory.products import linear
from autosbp.costmodel.memory.tensors import PARAMETERS, TEMPORARY, Meter, Shape, Tensor, contiguous
from autosbp.costmodel.memory.views import joined, packed, transposed
from autosbp.graph.ir import Node

FUSED = ("float32", "bfloat16")
States = Sequence[Tensor]
Cell = Callable[[Machine, Tensor, States, "Weights"], States]
"""(machine, the input's products, states, weights) -> states of which the first is the output."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Of one direction of a layer: of the input [gates x hidden, features], of the state, and of both biases or none."""

    of_input: Tensor
    of_state: Tensor
    biases: tuple[Tensor, Tensor] | None

    def bias(self, at: int) -> Tensor | None:
        return None if self.biases is None else self.biases[at]


@dataclass(frozen=True, slots=True)
class Layers:
    """The settings of a call; ``fused`` where oneDNN runs it on a CPU."""

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


def layers_of(node: Node, num_tensors: int) -> Layers | None:
    """Of a node that reads so many tensors; None where it is no recurrent layer, or one whose states are projected."""
    if node.op not in CELLS:
        return None
    cell, num_states = CELLS[node.op]
    biases, count, dropout, trains, twice, batch_first = node.args[3:9]
    fused = cell is _lstm and node.outputs[0].dtype in FUSED
    found = Layers(cell, num_states, biases, trains and dropout > 0, 1 + twice, batch_first, fused)
    return found if num_tensors == 1 + num_states + count * (1 + twice) * found.num_weights else None


def recurrent(m: Machine, call: Layers, ins: Sequence[Tensor]) -> list[Tensor]:
    """The output of all steps and the last states [layers x directions, batch, hidden]."""
    x = transposed(m, ins[0], 0, 1) if call.batch_first else ins[0]
    firsts = list(zip(*(unbound(m, state) for state in ins[1 : 1 + call.num_states]), strict=True))
    weights = _weights(call, ins[1 + call.num_states :])
    fused = call.fused and m.device == "cpu"
    x = packed(m, x) if fused else x
    last: list[States] = []
    for at in range(0, len(weights), call.num_directions):
        outs = []
        for direction in range(call.num_directions):
            own, states = weights[at + direction], firsts[at + direction]
            if fused:
                out, *ends = onednn.lstm(m, x, states, own.of_input, own.of_state, own.biases)
            else:
                out, *ends = _composed(m, call.cell, x, states, own, backwards=direction > 0)
            outs.append(out)
            last.append(ends)
        shape = (*x.shape[:2], sum(out.shape[2] for out in outs))
        x = joined(m, outs, shape, x.width) if len(outs) > 1 else outs[0]
        del outs, out
        if call.drops and at + call.num_directions < len(weights):
            x = dropped(m, x)
    ended = [_stacked(m, [ends[state] for ends in last]) for state in range(call.num_states)]
    return [transposed(m, x, 0, 1) if call.batch_first else x, *ended]


@lru_cache(maxsize=4096)
def kept_bytes(call: Layers, shapes: tuple[Shape, ...], width: int, saved: tuple[int, ...], saves_output: bool) -> int:
    """What autograd keeps on a CPU, of inputs of these shapes and of elements of ``width`` bytes, beside parameters, the
    ``saved`` inputs and, where told so, the output."""
    m, others = Machine(Meter()), 1 + call.num_states
    ins = [m.new(shape, width, purpose=TEMPORARY if at < others else PARAMETERS) for at, shape in enumerate(shapes)]
    for each in (ins[0], *ins[others:]):
        each.node = Leaf(lambda _: None)
    out = recurrent(m, call, ins)[0]
    known = [ins[at] for at in saved if at < others] + ([out] if saves_output else [])
    return m.meter.kept - sum(each.storage.num_bytes for each in known if each.storage.saved)


def _weights(call: Layers, tensors: Sequence[Tensor]) -> list[Weights]:
    found = []
    for at in range(0, len(tensors), call.num_weights):
        of_input, of_state, *biases = tensors[at : at + call.num_weights]
        found.append(Weights(of_input, of_state, (biases[0], biases[1]) if biases else None))
    return found


def _composed(m: Machine, cell: Cell, x: Tensor, states: States, weights: Weights, *, backwards: bool) -> list[Tensor]:
    """One direction of a layer: the outputs of its steps as one, and its last states."""
    steps = unbound(m, linear(m, x, weights.of_input, weights.bias(0)))
    made = []
    for step in reversed(steps) if backwards else steps:
        states = cell(m, step, states, weights)
        made.append(states[0])
    return [_stacked(m, made[::-1] if backwards else made), *states]


def _plain(name: str) -> Cell:
    def cell(m: Machine, step: Tensor, states: States, weights: Weights) -> States:
        total = _added(m, linear(m, states[0], weights.of_state, weights.bias(1)), step)
        return [unary(m, total, UNARY[name])]

    return cell


def _gru(m: Machine, step: Tensor, states: States, weights: Weights) -> States:
    (hidden,) = states
    given = _gates(m, step, 3)
    own = _gates(m, linear(m, hidden, weights.of_state, weights.bias(1)), 3)
    reset = _activated(m, _added(m, own[0], given[0]))
    update = _activated(m, _added(m, own[1], given[1]))
    new = _activated(m, binary(m, "aten.add.Tensor", given[2], _scaled(m, own[2], reset), step.width))
    return [_added(m, _scaled(m, binary(m, "aten.sub.Tensor", hidden, new, step.width), update), new)]


def _lstm(m: Machine, step: Tensor, states: States, weights: Weights) -> States:
    hidden, cell = states
    gates = _gates(m, _added(m, linear(m, hidden, weights.of_state, weights.bias(1)), step), 4)
    given, forget, new, out = (_activated(m, gate) for gate in gates)
    kept = binary(m, "aten.mul.Tensor", forget, cell, step.width)
    cell = _added(m, kept, binary(m, "aten.mul.Tensor", given, new, step.width))
    return [binary(m, "aten.mul.Tensor", out, unary(m, cell, UNARY["aten.tanh.default"]), step.width), cell]


CELLS: Mapping[str, tuple[Cell, int]] = {
    "aten.rnn_tanh.input": (_plain("aten.tanh.default"), 1),
    "aten.rnn_relu.input": (_plain("aten.relu.default"), 1),
    "aten.gru.input": (_gru, 1),
    "aten.lstm.input": (_lstm, 2),
}
"""With the number of states."""


def _gates(m: Machine, x: Tensor, count: int) -> list[Tensor]:
    """``unsafe_chunk``: parts of columns."""
    return parts(m, x, [(x.shape[0], x.shape[1] // count)] * count, x.strides)


def _stacked(m: Machine, rows: Sequence[Tensor]) -> Tensor:
    """``stack`` as the first dim: each one's gradient is a view of the whole one."""
    count, shape = len(rows), rows[0].shape
    out = m.new((count, *shape), rows[0].width)
    m.record([out], rows, [], lambda grads, _: [grads[0].view(shape, contiguous(shape)) for _ in range(count)])
    return out


def _inside(x: Tensor) -> Tensor:
    """What an op that writes into ``x`` gives."""
    return Tensor(x.storage, x.shape, x.strides, x.width)


def _added(m: Machine, x: Tensor, other: Tensor) -> Tensor:
    """``add_``: hands the gradient on."""
    out, flows = _inside(x), [x.node is not None, other.node is not None]
    m.record([out], [x, other], [], lambda grads, _: [grads[0] if flow else None for flow in flows])
    return out


def _activated(m: Machine, x: Tensor) -> Tensor:
    """``sigmoid_`` and ``tanh_``: the result is kept."""
    out = _inside(x)
    m.record([out], [x], [out], lambda grads, _: [m.like(grads[0])])
    return out


def _scaled(m: Machine, x: Tensor, by: Tensor) -> Tensor:
    """``mul_``: keeps the factor and a copy of what it writes over."""
    before, out = m.like(x), _inside(x)
    m.record([out], [x, by], [before, by], lambda grads, _: [m.like(grads[0]), m.like(grads[0])])
    return out
