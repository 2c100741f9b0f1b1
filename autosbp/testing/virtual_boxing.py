"""Numeric check of boxing: the executor's steps on virtual ranks, forward, backward, and their record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from autosbp.executor.lowering import _call
from autosbp.executor.runtime import IssuedCollective, Runtime
from autosbp.sbp.boxing import COLLECTIVES, BoxingStep, message_bytes, permute_peers
from autosbp.sbp.mesh import Mesh
from autosbp.testing.virtual import VirtualRanks
from autosbp.testing.virtual_layouts import assert_shards_match, gradient_layout, random_shards

Path = tuple[BoxingStep, ...]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Result of one rank after a path: the value, the source's gradient (None for maxima), and the issued collectives."""

    value: torch.Tensor
    gradient: torch.Tensor | None
    issued: list[IssuedCollective]


def check_steps(steps: Path, shape: tuple[int, ...], mesh: Mesh) -> list[list[IssuedCollective]]:
    """Run the steps in order on a random tensor; return the collectives that each rank issued.

    Raises:
        AssertionError: if the result is not the same tensor in the last layout, its gradient does not become the same
            gradient of the source, or collectives or bytes differ from those that the cost model charges.
    """
    return check_paths([steps], shape, mesh)[0]


def check_paths(
    paths: Sequence[Path], shape: tuple[int, ...], mesh: Mesh, dtype: torch.dtype = torch.float64
) -> list[list[list[IssuedCollective]]]:
    """Run ``check_steps`` for many paths of one or more steps, in order on the same ranks.

    Partial maxima and minima, and dtypes other than floats, have no gradient.
    """
    generator = torch.Generator().manual_seed(0)
    whole, gradient = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    whole = whole > 0 if dtype == torch.bool else (10 * whole).to(dtype)
    sources = [random_shards(whole, steps[0].src, mesh, generator) for steps in paths]
    incoming = [random_shards(gradient, gradient_layout(steps[-1].dst), mesh, generator) for steps in paths]

    def work(runtime: Runtime) -> list[_Outcome]:
        return [
            _run(steps, source[runtime.rank], grad[runtime.rank], runtime)
            for steps, source, grad in zip(paths, sources, incoming, strict=True)
        ]

    ranks = VirtualRanks(mesh).run(work)
    num_bytes = whole.numel() * whole.element_size()
    for at, steps in enumerate(paths):
        outcomes = [rank[at] for rank in ranks]
        what = " ; ".join(f"{step.forward} / {step.backward} over {step.axes}" for step in steps)
        what = f"{what} from {', '.join(map(str, steps[0].src))} to {', '.join(map(str, steps[-1].dst))}"
        assert_shards_match([outcome.value for outcome in outcomes], steps[-1].dst, mesh, whole, what)
        gradients = [outcome.gradient for outcome in outcomes if outcome.gradient is not None]
        if gradients:
            assert_shards_match(gradients, gradient_layout(steps[0].src), mesh, gradient, f"gradient of {what}")
        for rank, outcome in enumerate(outcomes):
            expected = _charged(steps, num_bytes, mesh, rank, outcome.gradient is not None)
            issued = [(call.kind, call.num_bytes) for call in outcome.issued]
            assert issued == expected, f"{what}: rank {rank} issued {issued}"
    return [[rank[at].issued for rank in ranks] for at in range(len(paths))]


def _run(steps: Path, source: torch.Tensor, incoming: torch.Tensor, runtime: Runtime) -> _Outcome:
    runtime.issued = []
    differentiable = _differentiable(steps) and source.is_floating_point()
    leaf = value = source.requires_grad_(differentiable)
    for step in steps:
        target, args, kwargs = _call(step, value)
        value = target(*args, **kwargs)
    grad = torch.autograd.grad(value, leaf, incoming)[0] if differentiable else None
    return _Outcome(value.detach(), grad, runtime.issued)


def _differentiable(steps: Path) -> bool:
    return all(sbp.reduction == "sum" for step in steps for sbp in (*step.src, *step.dst))


def _charged(steps: Path, num_bytes: int, mesh: Mesh, rank: int, differentiable: bool) -> list[tuple[str, int]]:
    """Kind and bytes of every collective, forward then backward; none for ranks that a permutation leaves in place."""
    calls = [(step.forward, step) for step in steps]
    calls += [(step.backward, step) for step in reversed(steps)] if differentiable else []
    return [
        (kind, message_bytes(step, num_bytes, mesh))
        for kind, step in calls
        if kind in COLLECTIVES and not (kind == "p2p" and len(permute_peers(mesh, step.axes, rank)) == 1)
    ]
