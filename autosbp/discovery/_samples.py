"""Random inputs that an op accepts, with the whole op's results: the reference for all layouts.

Numbers are signed if the op is finite on them, else positive, fractions or above 1. A second sample has many equal
values, so that ties and comparisons occur; a third, for ops on integers, has ascending integers, so that parts differ.
Integers of unknown range are tried as indices into any dim, and as ascending offsets whose last is the size of a dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch

from autosbp.discovery._call import Call, Draw, Tensor

TOLERANCES: Mapping[torch.dtype, float] = {
    torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2,
}  # fmt: skip
RANGES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda normal: normal,
    lambda normal: normal.abs() + 0.5,
    lambda normal: 0.05 + 0.9 * normal.sigmoid(),
    lambda normal: normal.abs() + 1.25,
)
"""Maps from normal random numbers to ranges that an op may accept."""
MAX_ENDS = 4


class Undiscoverable(Exception):
    """Why discovery by running the op fails, phrased as the end of a sentence about the op."""


class RandomOp(Undiscoverable):
    """The op draws random numbers."""


@dataclass(frozen=True)
class Sample:
    """Values of a call's tensors, the whole op's outputs, incoming gradients and the tracked tensors' gradients."""

    values: Draw
    outputs: tuple[torch.Tensor, ...]
    incoming: tuple[torch.Tensor, ...]
    gradients: list[torch.Tensor]
    tolerance: float


def samples(call: Call, count: int | None = None) -> list[Sample]:
    """Samples of a call, the same on every machine.

    Args:
        count: number of samples, by default all: 3 if the call has integer tensors, else 2.

    Raises:
        Undiscoverable: the op accepts none.
    """
    if count is None:
        count = 3 if any(not _is_float(spec) and spec.dtype != torch.bool for spec in call.tensors) else 2
    best: list[Sample] = []
    told = -1.0
    failure = Undiscoverable("has no tensor argument")
    for end in (None, *_ends(call)):
        try:
            found = [_sample(call, seed, end) for seed in range(count)]
        except RandomOp:
            raise
        except Undiscoverable as error:
            failure = error if end is None else failure
            continue
        telling = sum(map(_nonzero_share, found))
        if telling > told + 1e-6:
            best, told = found, telling
    if not best:
        raise failure
    return best


def _sample(call: Call, seed: int, end: int | None) -> Sample:
    """One sample; raises ``Undiscoverable``."""
    failure = Undiscoverable("")
    for lie in RANGES:
        generator = torch.Generator().manual_seed(seed)
        values = [_value(spec, call, generator, seed, lie, end) for spec in call.tensors]
        try:
            with torch.no_grad():
                outputs = call.run(values)
            incoming = tuple(_gradient(out, generator) for out in outputs)
            whole, gradients = call.gradients(values, incoming)
        except Exception as error:  # a custom op may raise anything
            failure = failure if str(failure) else Undiscoverable(f"fails on random inputs: {_first_line(error)}")
            continue
        if all(bool(out.isfinite().all()) for out in (*whole, *gradients) if out.is_floating_point()):
            _check_repeatable(call, values, outputs)
            return Sample(values, whole, incoming, gradients, _tolerance((*values, *whole)))
        failure = Undiscoverable("is not finite on random inputs")
    raise failure


def _value(
    spec: Tensor,
    call: Call,
    generator: torch.Generator,
    seed: int,
    lie: Callable[[torch.Tensor], torch.Tensor],
    end: int | None,
) -> torch.Tensor:
    if spec.dtype == torch.bool:
        return torch.randint(0, 2, spec.shape, generator=generator).bool()
    if not spec.dtype.is_floating_point:
        if spec.high is None and end is not None and len(spec.shape) == 1:
            inner = torch.randint(0, end + 1, (spec.shape[0] - 1,), generator=generator).sort().values
            return torch.cat([inner, torch.tensor([end])]).to(spec.dtype)
        high = spec.high or _least_size(call)
        if seed == 2:
            num_elements = prod(spec.shape)
            return (torch.arange(num_elements) * high // max(high, num_elements)).view(spec.shape).to(spec.dtype)
        low, high = (1, high // 2 + 1) if seed % 2 and high > 3 else (0, high)
        return torch.randint(low, high, spec.shape, generator=generator).to(spec.dtype)
    value = torch.randn(spec.shape, generator=generator, dtype=torch.float64)
    return lie((2 * value).round() / 2 if seed % 2 else value).to(spec.dtype)


def _ends(call: Call) -> Iterator[int]:
    """Last values of offset tensors to try: the sizes of float tensors."""
    if not any(spec.high is None and not _is_float(spec) and len(spec.shape) == 1 for spec in call.tensors):
        return
    sizes = {size: None for spec in call.tensors if _is_float(spec) for size in spec.shape if size > 1}
    yield from list(sizes)[:MAX_ENDS]


def _least_size(call: Call) -> int:
    """Bound below which an index is valid in any dim of any tensor."""
    return min((size for spec in call.tensors for size in spec.shape if size > 1), default=2)


def _is_float(spec: Tensor) -> bool:
    return spec.dtype.is_floating_point


def _nonzero_share(sample: Sample) -> float:
    """How informative a sample is: the mean share of nonzero values in its outputs and gradients."""
    found = (*sample.outputs, *sample.gradients)
    return sum(float((out != 0).double().mean()) for out in found if out.numel()) / max(1, len(found))


def _gradient(out: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(out.shape, generator=generator, dtype=torch.float64).to(
        out.dtype if out.is_floating_point() else torch.float64
    )


def _check_repeatable(call: Call, values: Draw, outputs: tuple[torch.Tensor, ...]) -> None:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for seed in (1, 2):
            torch.manual_seed(seed)
            again = call.run(values)
            if not all(torch.equal(one, two) for one, two in zip(again, outputs, strict=True)):
                raise RandomOp("draws random numbers")


def _tolerance(tensors: tuple[torch.Tensor, ...]) -> float:
    return max(TOLERANCES.get(tensor.dtype, 0.0) for tensor in tensors) or TOLERANCES[torch.float64]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]
