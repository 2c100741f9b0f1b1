"""Whether a boxing step does what it says: the executor's step on virtual ranks, forward, backward, and its record."""

from __future__ import annotations

import torch

from autosbp.executor.lowering import _call
from autosbp.executor.runtime import Issued, Runtime
from autosbp.sbp.boxing import COLLECTIVES, Step, message_bytes
from autosbp.sbp.mesh import Mesh
from autosbp.testing.virtual import VirtualRanks
from autosbp.testing.virtual_layouts import assert_holds, gradient_layout, random_parts


def check_steps(steps: tuple[Step, ...], shape: tuple[int, ...], mesh: Mesh) -> list[list[Issued]]:
    """Run the steps in order on a random tensor; returns the collectives that each rank issued.

    Raises ``AssertionError`` unless the result is the same tensor in the last layout, a gradient of the result becomes
    the same gradient of the source, and the collectives and their bytes are those that the cost model charges.
    """
    generator = torch.Generator().manual_seed(0)
    whole, gradient = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    src, dst = steps[0].src, steps[-1].dst
    sources = random_parts(whole, src, mesh, generator)
    incoming = random_parts(gradient, gradient_layout(dst), mesh, generator)

    def work(runtime: Runtime) -> tuple[torch.Tensor, torch.Tensor, list[Issued]]:
        leaf = sources[runtime.rank].requires_grad_()
        value = leaf
        for step in steps:
            target, args, kwargs = _call(step, value)
            value = target(*args, **kwargs)
        (grad,) = torch.autograd.grad(value, leaf, incoming[runtime.rank])
        return value.detach(), grad, runtime.issued

    results = VirtualRanks(mesh).run(work)
    what = " ; ".join(f"{step.forward} / {step.backward} over {step.axes}" for step in steps)
    assert_holds([value for value, _, _ in results], dst, mesh, whole, what)
    assert_holds([grad for _, grad, _ in results], gradient_layout(src), mesh, gradient, f"gradient of {what}")
    for rank, (_, _, issued) in enumerate(results):
        expected = _charged(steps, whole.numel() * whole.element_size(), mesh, rank)
        assert [(call.kind, call.num_bytes) for call in issued] == expected, f"{what}: rank {rank} issued {issued}"
    return [issued for _, _, issued in results]


def _charged(steps: tuple[Step, ...], num_bytes: int, mesh: Mesh, rank: int) -> list[tuple[str, int]]:
    """Kind and message of every collective, forward then backward; ranks that a permutation leaves are idle."""
    calls = [(step.forward, step) for step in steps] + [(step.backward, step) for step in reversed(steps)]
    place = mesh.coordinate(rank)
    return [
        (kind, message_bytes(step, num_bytes, mesh))
        for kind, step in calls
        if kind in COLLECTIVES and not (kind == "p2p" and place[step.axes[0]] == place[step.axes[1]])
    ]
