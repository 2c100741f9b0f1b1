"""Norms and softmax over split dims where numbers are hard: large means, half precision, infinities."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from autosbp.executor.runtime import Runtime
from autosbp.executor.split_ops import _norms, _softmax
from autosbp.testing.virtual import VirtualRanks, plain_mesh

RANKS = 4


def split_columns(x: torch.Tensor, op: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Output of ``op`` and the gradient of the sum of its squares, the last dim split over four ranks."""

    def work(runtime: Runtime) -> tuple[torch.Tensor, torch.Tensor]:
        part = x.chunk(RANKS, -1)[runtime.rank].clone().requires_grad_()
        out = op(part)
        (grad,) = torch.autograd.grad(out, part, 2 * out.detach())
        return out.detach(), grad

    found = VirtualRanks(plain_mesh(RANKS)).run(work)
    return torch.cat([out for out, _ in found], -1), torch.cat([grad for _, grad in found], -1)


def whole(x: torch.Tensor, op: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.clone().requires_grad_()
    out = op(leaf)
    return out.detach(), torch.autograd.grad(out, leaf, 2 * out.detach())[0]


OPS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "layer norm": (
        lambda x: _norms.layer_norm_split(x, [x.shape[-1]], None, None, 1e-5, (0,)),
        lambda x: functional.layer_norm(x, (x.shape[-1],)),
    ),
    "rms norm": (
        lambda x: _norms.rms_norm_split(x, [x.shape[-1]], None, None, (0,)),
        lambda x: functional.rms_norm(x, (x.shape[-1],)),
    ),
    "softmax": (lambda x: _softmax.softmax_split(x, 1, (0,)), lambda x: x.softmax(1)),
    "log-softmax": (lambda x: _softmax.log_softmax_split(x, 1, (0,)), lambda x: x.log_softmax(1)),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("level", [0.0, 1000.0], ids=["centred", "far from zero"])
def test_it_is_as_near_to_the_truth_as_torch_is(name: str, dtype: torch.dtype, level: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (level + torch.randn(8, 64, generator=generator, dtype=torch.float64)).to(dtype)
    split, own = OPS[name]
    truth = whole(x.double(), own)
    for part, theirs, exact in zip(split_columns(x, split), whole(x, own), truth, strict=True):
        assert part.dtype == dtype
        error, allowed = ((each.double() - exact).abs().max() for each in (part, theirs))
        scale = exact.abs().max()
        assert error <= 3 * allowed + 4 * torch.finfo(dtype).eps * scale, (float(error), float(allowed))


@pytest.mark.parametrize("name", ["softmax", "log-softmax"])
def test_classes_that_are_ruled_out_on_whole_ranks_have_no_weight(name: str) -> None:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0, 2:], x[1, :6], x[2] = -torch.inf, -torch.inf, 300.0
    split, own = OPS[name]
    torch.testing.assert_close(split_columns(x, split)[0], whole(x, own)[0], rtol=1e-12, atol=1e-14)


def test_synchronised_batch_norm_keeps_digits_where_the_mean_is_large() -> None:
    x = 1e4 + torch.randn(16, 3, 5, generator=torch.Generator().manual_seed(0))
    wanted = functional.batch_norm(x.double(), None, None, training=True)

    def work(runtime: Runtime) -> torch.Tensor:
        return _norms.batch_norm_split(x.chunk(4)[runtime.rank], None, None, 1e-5, (0,))

    found = torch.cat(VirtualRanks(plain_mesh(4)).run(work))
    # The mean of 1e4 is known to its last digit; sums of squares would leave errors above 1.
    assert float((found - wanted).abs().max()) <= torch.finfo(torch.float32).eps * 1e4
