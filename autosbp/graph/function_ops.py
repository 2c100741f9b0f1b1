"""Run a ``CustomFunction``: forward and backward of its body, through autograd."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from autosbp.graph.custom_functions import CustomFunction, reachable, references
from autosbp.graph.scan_ops import scan_op
from autosbp.utils.json_io import NON_FINITE

MAX_SIZE = 2**63
Resolve = Callable[[str], Callable[..., Any]]
Run = Callable[..., Any]


def _within_64_bits(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any) -> Any:
        value = compute(*args)
        if type(value) is int and not -MAX_SIZE <= value < MAX_SIZE:  # repeated squares would fill the memory
            raise ValueError(f"a size of int.{name} is {value}, beyond 64 bits")
        return value

    checked.__name__ = checked.__qualname__ = f"checked_{name}"
    return checked


_INT_OPS: Mapping[str, Callable[..., Any]] = {
    name: _within_64_bits(name, compute)
    for name, compute in {
        "size": lambda tensor, dim: tensor.shape[dim],
        **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "truediv")},
        "sym_max": max,
        "sym_min": min,
    }.items()
}


@lru_cache(maxsize=1024)
def function_op(function: CustomFunction, resolve: Resolve) -> Callable[..., Any]:
    """The op: takes the tensors of the function, returns a tensor, or a tuple if the function has several outputs.

    Args:
        resolve: finds ops of torch by name.
    """
    body = RunnableBody(function, resolve)
    scan = function.scan
    apply = _applied(body) if scan is None else scan_op(scan, body.forward, body.backward)

    def call(*tensors: torch.Tensor) -> Any:
        outputs = apply(*tensors)
        return outputs[0] if len(outputs) == 1 else outputs

    call.__name__ = call.__qualname__ = function.name.replace(".", "_")
    vars(call)["function_name"] = function.name  # has the hash of the body, by which layouts are cached
    return call


class RunnableBody:
    """Forward and backward of a body as compiled functions, which free each value after its last use."""

    def __init__(self, function: CustomFunction, resolve: Resolve) -> None:
        self.document, self.resolve = function.document, resolve
        self.inputs = tuple(f"x{at}" for at in range(self.document["inputs"]))
        self.incoming = tuple(f"g{at}" for at in range(len(self.document["outputs"])))
        self.gradients: Sequence[Any] = self.document["gradients"]
        self.constant_outputs: Sequence[int] = self.document.get("constant_outputs", ())
        early = reachable(self.document, self.document["outputs"])
        late = reachable(self.document, [each for each in self.gradients if each is not None]) - early
        read = set(references(self.gradients))
        for step in self.document["steps"]:
            if step["name"] in late:
                read.update(references([step["args"], list(step.get("kwargs", {}).values())]))
        known = {*self.inputs, *(step["name"] for step in self.document["steps"])} - late
        self.saved = tuple(sorted(read & known))
        """Values of the forward pass that the backward pass reads."""

    def forward(self, with_saved: bool = False) -> Run:
        """(arguments) -> list of the outputs, with ``with_saved`` followed by the ``saved`` values."""
        saved = [{"ref": name} for name in self.saved if with_saved]
        return self._compiled(self.inputs, [*self.document["outputs"], *saved])

    def backward(self, given: Sequence[str], wanted: Sequence[int]) -> Run:
        """(values named ``given``, incoming gradients) -> list of the gradients of the arguments at ``wanted``, or None."""
        return self._compiled((*given, *self.incoming), [self.gradients[at] for at in wanted])

    def _compiled(self, given: Sequence[str], results: Sequence[Any]) -> Run:
        graph = torch.fx.Graph()
        values: dict[str, Any] = {name: graph.placeholder(name) for name in given}
        needed = self._steps_of(given, results)
        for step in self.document["steps"]:
            if step["name"] in needed:
                args = tuple(_filled(arg, values, graph) for arg in step["args"])
                kwargs = {name: _filled(arg, values, graph) for name, arg in step.get("kwargs", {}).items()}
                library, _, short = step["op"].partition(".")
                target = _INT_OPS[short] if library == "int" else self.resolve(step["op"])
                values[step["name"]] = graph.call_function(target, args, kwargs)
        graph.output([None if ref is None else _filled(ref, values, graph) for ref in results])
        run: Run = torch.fx.GraphModule(torch.nn.Module(), graph).forward
        return run

    def _steps_of(self, given: Sequence[str], results: Sequence[Any]) -> set[str]:
        """Names of the values that ``results`` are computed from, up to the ``given`` ones."""
        found = set(references([each for each in results if each is not None])) - set(given)
        for step in reversed(self.document["steps"]):
            if step["name"] in found:
                found |= set(references([step["args"], list(step.get("kwargs", {}).values())])) - set(given)
        return found


def _applied(body: RunnableBody) -> Run:
    """A function that runs once, through autograd."""
    forward = body.forward(with_saved=True)
    backward = body.backward(body.saved, range(len(body.inputs)))

    def apply(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = _Apply.apply(body, forward, backward, *tensors)  # type: ignore[no-untyped-call]
        return found

    return apply


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, body: RunnableBody, forward: Run, backward: Run, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        found = forward(*tensors)
        count = len(body.incoming)
        outputs = tuple(out.view_as(out) if any(out is one for one in tensors) else out for out in found[:count])
        ctx.mark_non_differentiable(*(outputs[at] for at in body.constant_outputs))
        saved = found[count:]
        ctx.save_for_backward(*(value if isinstance(value, torch.Tensor) else None for value in saved))
        ctx.others = [None if isinstance(value, torch.Tensor) else value for value in saved]
        ctx.body, ctx.run, ctx.shapes = body, backward, [tensor.shape for tensor in tensors]
        return outputs

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        saved = [
            other if tensor is None else tensor for tensor, other in zip(ctx.saved_tensors, ctx.others, strict=True)
        ]
        found = ctx.run(*saved, *incoming)
        return (
            None,
            None,
            None,
            *(
                one if ref is not None else incoming[0].new_zeros(shape) if needed else None
                for one, ref, shape, needed in zip(
                    found, ctx.body.gradients, ctx.shapes, ctx.needs_input_grad[3:], strict=True
                )
            ),
        )


def _filled(arg: Any, values: Mapping[str, Any], graph: torch.fx.Graph) -> Any:
    """An argument of a body as an argument of an fx node."""
    if isinstance(arg, list):
        return [_filled(item, values, graph) for item in arg]
    if not isinstance(arg, dict):
        return arg
    if "ref" in arg:
        value = values[arg["ref"]]
        return graph.call_function(operator.getitem, (value, arg["out"])) if "out" in arg else value
    return NON_FINITE[arg["float"]] if "float" in arg else getattr(torch, arg["dtype"])
