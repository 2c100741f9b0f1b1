"""Entries of torch's OpInfo database as models: one op on its own sample, scaled by a parameter, and a loss of all outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.graph.to_fx import initial_parameter, resolve_op, to_fx_arg

MAX_ELEMENTS = 200_000
Tensor = torch.Tensor


def entries(part: int, parts: int) -> list[Any]:
    """Every ``parts``-th entry that differentiates in float64."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db[part::parts] if op.supports_autograd and torch.float64 in op.dtypes]


def full_name(op: Any) -> str:
    """Name and variant of an entry."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def sample_of(op: Any) -> Any:
    """The sample with most tensors whose first dim can be a batch; None if there is none."""
    best: tuple[int, Any] | None = None
    for sample in op.sample_inputs("cpu", torch.float64, requires_grad=False):
        given = sample.input
        if not isinstance(given, Tensor) or given.ndim < 1 or given.shape[0] < 2 or given.numel() > MAX_ELEMENTS:
            continue
        values = [*sample.args, *sample.kwargs.values()]
        if any(isinstance(each, (list, tuple)) and any(isinstance(one, Tensor) for one in each) for each in values):
            continue
        score = 10 * sum(isinstance(each, Tensor) for each in values) - 5 * (given.ndim < 2)
        if best is None or score < best[0]:
            best = score, sample
    return None if best is None else best[1]


class OneOp(nn.Module):
    """The op of an entry, as a model whose input is a batch."""

    def __init__(self, op: Any, sample: Any) -> None:
        super().__init__()
        self.op, self.scale = op, nn.Parameter(torch.ones((), dtype=torch.float64))
        self.example = {"x": sample.input.detach()}
        self.args = tuple(self._placed(f"a{at}", arg, sample.input) for at, arg in enumerate(sample.args))
        self.named = {name: self._placed(f"k_{name}", arg, None) for name, arg in sample.kwargs.items()}

    def _placed(self, name: str, arg: Any, batch: Tensor | None) -> Any:
        """An argument, or the name of its input (a batch, too) or buffer."""
        if not isinstance(arg, Tensor):
            return arg
        if batch is not None and arg.ndim == batch.ndim and arg.shape[0] == batch.shape[0] and len(self.example) < 3:
            self.example[name] = arg.detach()
        else:
            self.register_buffer(name, arg.detach())
        return _Named(name)

    def forward(self, x: Tensor, a0: Tensor | None = None, a1: Tensor | None = None) -> Tensor:
        given = {"a0": a0, "a1": a1}

        def value(arg: Any) -> Any:
            if not isinstance(arg, _Named):
                return arg
            return given[arg.name] if arg.name in self.example else getattr(self, arg.name)

        found = self.op.op(
            x * self.scale, *map(value, self.args), **{name: value(arg) for name, arg in self.named.items()}
        )
        loss = self.scale * 0.0
        for out in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(out, Tensor) and out.is_floating_point():
                loss = loss + (out * out).sum() + out.sum()
        return loss


class _Named:
    """The name of a tensor argument."""

    def __init__(self, name: str) -> None:
        self.name = name


def eager_results(model: OneOp) -> tuple[Tensor, Tensor] | None:
    """Loss and gradient of the scale; None where the op does not run on the sample."""
    try:
        loss = model(**model.example)
        (gradient,) = torch.autograd.grad(loss, [model.scale])
    except Exception:  # samples that only other devices or layouts take
        return None
    return loss.detach(), gradient


def graph_results(bound: LogicalGraph, model: OneOp) -> tuple[Tensor, Tensor, dict[str, tuple[Tensor, ...]]]:
    """Loss, gradient of the scale, and the value of every name in the bound graph."""
    scale = model.scale.detach().clone().requires_grad_()
    values: dict[str, Any] = {leaf.name: (initial_parameter(leaf, {"scale": scale}),) for leaf in bound.parameters}
    values |= {leaf.name: (model.example[leaf.name],) for leaf in bound.inputs}
    values |= {name: (tensor,) for name, tensor in _constants(bound)}
    for node in bound.nodes:
        flat = {name: value if len(value) > 1 else value[0] for name, value in values.items()}
        result = resolve_op(node.op)(
            *(to_fx_arg(arg, flat) for arg in node.args),
            **{key: to_fx_arg(arg, flat) for key, arg in node.kwargs.items()},
        )
        values[node.name] = (result,) if isinstance(result, Tensor) else tuple(result)
    loss = values[bound.loss.name][bound.loss.index]
    (gradient,) = torch.autograd.grad(loss, [scale], allow_unused=True) if loss.requires_grad else (None,)
    plain = {name: tuple(each.detach() for each in value) for name, value in values.items()}
    return loss.detach(), torch.zeros_like(scale) if gradient is None else gradient, plain


def _constants(bound: LogicalGraph) -> Iterator[tuple[str, Tensor]]:
    from autosbp.graph.to_fx import constant_tensor

    for leaf in bound.constants:
        yield leaf.name, constant_tensor(leaf)


def operands(values: dict[str, tuple[Tensor, ...]], refs: list[Ref]) -> list[Tensor]:
    """The values of an op's tensor arguments."""
    return [values[ref.name][ref.index].clone() for ref in refs]


def are_close(one: Tensor, two: Tensor) -> bool:
    """Equal up to rounding; NaN and infinity equal themselves."""
    return bool(torch.isclose(one, two, rtol=1e-6, atol=1e-8, equal_nan=True))
