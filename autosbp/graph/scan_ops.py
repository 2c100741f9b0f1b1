"""Run a scan: a body step after step along dim 0, with its own backward.

Forward saves the carried states before each step, and the arguments that backward reads. Backward goes through the steps in
reverse, computes the values of each anew from these, and adds up the gradients of what every step reads whole. The memory
model (``autosbp.costmodel.memory.saved_tensors``) counts the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch

from autosbp.graph.custom_functions import ScanBody

Run = Callable[..., Any]
Tensors = Sequence[torch.Tensor]


def scan_op(scan: ScanBody, make_forward: Callable[[], Run], make_backward: Callable[..., Run]) -> Run:
    """All steps, through autograd: (arguments) -> last states, then stacked results.

    Args:
        make_forward: makes the forward pass of one step, (arguments) -> outputs.
        make_backward: makes its backward pass for the names of given values and the places of wanted gradients.
    """
    steps = _Steps(scan, make_forward(), make_backward)

    def apply(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if tensors[0].device.type == "meta":
            return steps.shapes(tensors)
        found: tuple[torch.Tensor, ...] = _Scan.apply(steps, *tensors)  # type: ignore[no-untyped-call]
        return found

    return apply


class _Steps:
    """The steps of a scan; arguments are carried states, stacked slices, and what every step reads."""

    def __init__(self, scan: ScanBody, forward: Run, make_backward: Callable[..., Run]) -> None:
        self.scan, self.forward = scan, forward
        self.sliced = range(scan.carries, scan.carries + scan.slices)

        @lru_cache(maxsize=16)
        def backward(saved: tuple[int, ...], wanted: tuple[int, ...]) -> Run:
            return make_backward([f"x{at}" for at in saved], wanted)

        self.backward = backward

    def arguments(self, tensors: Tensors, at: int) -> Iterator[torch.Tensor]:
        """Arguments of one step but the states, of these arguments of the scan but the states."""
        for place, tensor in enumerate(tensors, self.scan.carries):
            yield tensor[at] if place in self.sliced else tensor

    def shapes(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """The outputs without values, from one step."""
        states, others = tensors[: self.scan.carries], tensors[self.scan.carries :]
        outputs = self.forward(*states, *self.arguments(others, 0))
        stacked = [out.new_empty((len(others[0]), *out.shape)) for out in outputs[self.scan.carries :]]
        return (*outputs[: self.scan.carries], *stacked)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, steps: _Steps, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = steps.scan.carries
        states: Tensors = tensors[:count]
        others, length = tensors[count:], len(tensors[count])
        trains = ctx.needs_input_grad[1:]
        saved = steps.scan.saved([at for at, needed in enumerate(trains) if needed]) if any(trains) else ()
        history = {at: states[at].new_empty((length, *states[at].shape)) for at in saved if at < count}
        stacked: list[torch.Tensor] = []
        for at in range(length):
            for place, past in history.items():
                past[at] = states[place]
            outputs = steps.forward(*states, *steps.arguments(others, at))
            states, results = outputs[:count], outputs[count:]
            del outputs
            stacked = stacked or [out.new_empty((length, *out.shape)) for out in results]
            for whole, out in zip(stacked, results, strict=True):
                whole[at] = out
            del results
        ctx.save_for_backward(*(history[at] if at < count else tensors[at] for at in saved))
        ctx.steps, ctx.saved, ctx.shapes = steps, saved, [tensor.shape for tensor in tensors]
        return (*(state.clone() for state in states), *stacked)  # a state may be a view of an argument

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        steps: _Steps = ctx.steps
        count, trains = steps.scan.carries, ctx.needs_input_grad[1:]
        wanted = tuple(at for at, needed in enumerate(trains) if needed or at < count)
        run = steps.backward(ctx.saved, wanted)
        of_states, of_results = list(incoming[:count]), incoming[count:]
        found: dict[int, torch.Tensor] = {}
        for at in reversed(range(ctx.shapes[count][0])):
            values = [
                tensor[at] if place < count or place in steps.sliced else tensor
                for place, tensor in zip(ctx.saved, ctx.saved_tensors, strict=True)
            ]
            gradients = run(*values, *of_states, *(each[at] for each in of_results))
            for place, gradient in zip(wanted, gradients, strict=True):
                if place < count:
                    of_states[place] = torch.zeros_like(of_states[place]) if gradient is None else gradient
                elif gradient is not None:
                    _add(found, place, gradient, at, ctx.shapes[place] if place in steps.sliced else None)
            del values, gradients, gradient
        return None, *(
            None if not needed else of_states[at] if at < count else found.get(at, incoming[0].new_zeros(shape))
            for at, (needed, shape) in enumerate(zip(trains, ctx.shapes, strict=True))
        )


def _add(found: dict[int, torch.Tensor], place: int, gradient: torch.Tensor, at: int, whole: torch.Size | None) -> None:
    """Store the gradient of one step: in its slice of a tensor of shape ``whole``, or added to those of other steps."""
    if whole is not None:
        if place not in found:
            found[place] = gradient.new_empty(whole)
        found[place][at] = gradient
    elif place in found:
        found[place] += gradient
    else:
        found[place] = gradient.clone()
