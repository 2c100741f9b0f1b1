"""Run a ``CustomFunction``: forward and backward of its body, through autograd."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from autosbp.graph.custom_functions import CustomFunction, reachable, references
from autosbp.utils.json_io import NON_FINITE

MAX_SIZE = 2**63
Values = dict[str, Any]
Resolve = Callable[[str], Callable[..., Any]]
_INT_OPS: Mapping[str, Callable[..., Any]] = {
    "size": lambda tensor, dim: tensor.shape[dim],
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "truediv")},
    "sym_max": max,
    "sym_min": min,
}


@lru_cache(maxsize=1024)
def function_op(function: CustomFunction, resolve: Resolve) -> Callable[..., Any]:
    """The op: takes the tensors of the function, returns a tensor, or a tuple if the function has several outputs.

    Args:
        resolve: finds ops of torch by name.
    """
    body = _RunnableBody(function, resolve)

    def call(*tensors: torch.Tensor) -> Any:
        outputs = _Apply.apply(body, *tensors)  # type: ignore[no-untyped-call]
        return outputs[0] if len(outputs) == 1 else outputs

    call.__name__ = call.__qualname__ = function.name.replace(".", "_")
    return call


class _RunnableBody:
    """The steps of forward and backward, and the values that forward saves for backward."""

    def __init__(self, function: CustomFunction, resolve: Resolve) -> None:
        document = function.document
        self.resolve = resolve
        self.inputs: int = document["inputs"]
        self.outputs, self.gradients = document["outputs"], document["gradients"]
        self.constant_outputs: Sequence[int] = document.get("constant_outputs", ())
        early = reachable(document, self.outputs)
        late = reachable(document, [each for each in self.gradients if each is not None])
        self.forward_steps = [step for step in document["steps"] if step["name"] in early]
        self.backward_steps = [step for step in document["steps"] if step["name"] in late - early]
        read = set(references([[step["args"], list(step.get("kwargs", {}).values())] for step in self.backward_steps]))
        read |= set(references(self.gradients))
        leaves = {f"x{at}" for at in range(self.inputs)}
        self.saved = sorted(read & (leaves | {step["name"] for step in self.forward_steps}))

    def run(self, steps: Sequence[Mapping[str, Any]], values: Values) -> None:
        """Run steps in order, adding each result to ``values``."""
        for step in steps:
            args = [_filled(arg, values) for arg in step["args"]]
            kwargs = {name: _filled(arg, values) for name, arg in step.get("kwargs", {}).items()}
            library, _, short = step["op"].partition(".")
            target = _INT_OPS[short] if library == "int" else self.resolve(step["op"])
            value = values[step["name"]] = target(*args, **kwargs)
            if type(value) is int and not -MAX_SIZE <= value < MAX_SIZE:  # repeated squares would fill the memory
                raise ValueError(f"{step['name']} is {value}, beyond 64 bits")


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, body: _RunnableBody, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values: Values = {f"x{at}": tensor for at, tensor in enumerate(tensors)}
        body.run(body.forward_steps, values)
        outputs = tuple(_filled(ref, values) for ref in body.outputs)
        outputs = tuple(out.view_as(out) if any(out is one for one in tensors) else out for out in outputs)
        ctx.mark_non_differentiable(*(outputs[at] for at in body.constant_outputs))
        saved = {name: values[name] for name in body.saved}
        ctx.save_for_backward(*(value for value in saved.values() if isinstance(value, torch.Tensor)))
        ctx.names = [name for name, value in saved.items() if isinstance(value, torch.Tensor)]
        ctx.others = {name: value for name, value in saved.items() if not isinstance(value, torch.Tensor)}
        ctx.body, ctx.shapes = body, [tensor.shape for tensor in tensors]
        return outputs

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        body: _RunnableBody = ctx.body
        values: Values = {**dict(zip(ctx.names, ctx.saved_tensors, strict=True)), **ctx.others}
        values.update((f"g{at}", gradient) for at, gradient in enumerate(incoming))
        body.run(body.backward_steps, values)
        return None, *(
            _filled(ref, values) if ref is not None else incoming[0].new_zeros(shape) if needed else None
            for ref, shape, needed in zip(body.gradients, ctx.shapes, ctx.needs_input_grad[1:], strict=True)
        )


def _filled(arg: Any, values: Values) -> Any:
    """An argument of a body with its values."""
    if isinstance(arg, list):
        return [_filled(item, values) for item in arg]
    if not isinstance(arg, dict):
        return arg
    if "ref" in arg:
        value = values[arg["ref"]]
        return value[arg.get("out", 0)] if isinstance(value, (tuple, list)) else value
    return NON_FINITE[arg["float"]] if "float" in arg else getattr(torch, arg["dtype"])
