"""A planned transfer between two meshes, on every process: boxing, messages, boxing; backward the other way.

A process that has the tensor on one mesh only takes part in the gradient, too: where its part is sent away, nothing of
it is left to call ``backward`` on. So every process of a transfer gets a *token*, an empty tensor; ``backward`` is
called on the loss, where there is one, and on all tokens. Autograd runs nodes in the reverse order of their making, so
processes that make the same transfers in the same order meet again in backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from autosbp.costmodel.transfer import TransferPlan
from autosbp.executor import _dist, ops
from autosbp.executor.runtime import Issued, Runtime
from autosbp.graph.materialise import dtype_of
from autosbp.sbp.placed_mesh import PlacedMesh
from autosbp.sbp.placement import NdSbp, gradient, local_shape
from autosbp.sbp.transfer import Piece, block_of, kept, messages


def transfer(
    x: torch.Tensor | None,
    plan: TransferPlan,
    source: Runtime | None,
    target: Runtime | None,
    here: int,
    device: torch.device,
    issued: list[Issued],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Hand a tensor over; call on every process of both meshes, and with no effect on others.

    Args:
        x: this process's part in ``plan.src``; None outside the source mesh.
        source, target: this process's runtimes on the two meshes, None outside of them; groups are made.
        here: this process's number, which ``plan``'s meshes call a device.
        device: where received parts live.
        issued: gets a record of each message that this process sends or receives, as ``("p2p", bytes, (from, to))``.

    Returns:
        this process's part in ``plan.dst``, None outside the destination mesh; and the token, None where no gradient
        flows or the process takes no part.
    """
    if source is None and target is None:
        return None, None
    if source is not None:
        assert x is not None
        x = ops.run_steps(x, plan.prepare, source)
    tracked = plan.differentiable and torch.is_grad_enabled()
    if tracked:
        start = torch.empty(0, requires_grad=True) if x is None else x
        apply: Any = _Delivery.apply
        received, token = apply(start, plan, here, device, issued)
    else:
        received, token = _forward(x, plan, here, device, issued), None
    if target is None:
        return None, token
    return ops.run_steps(received, plan.finish, target), token


class _Delivery(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, plan: TransferPlan, here: int, device: torch.device, issued: list[Issued]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.call = (plan, here, device, issued)
        ctx.set_materialize_grads(False)
        return _forward(x, plan, here, device, issued), torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        plan, here, device, issued = ctx.call
        grad = grads[0]
        if grad is None and plan.dst_mesh.rank_of(here) is not None:
            shape = local_shape(plan.shape, plan.received, plan.dst_mesh)
            grad = torch.zeros(shape, dtype=dtype_of(plan.dtype), device=device)
        received, sent = (tuple(map(gradient, layout)) for layout in (plan.received, plan.sent))
        route = _Route(plan, plan.backward, received, plan.dst_mesh, sent, plan.src_mesh)
        return route.deliver(grad, here, device, issued), None, None, None, None


def _forward(
    x: torch.Tensor | None, plan: TransferPlan, here: int, device: torch.device, issued: list[Issued]
) -> torch.Tensor:
    route = _Route(plan, plan.forward, plan.sent, plan.src_mesh, plan.received, plan.dst_mesh)
    out = route.deliver(x, here, device, issued)
    return torch.empty(0) if out is None else out


@dataclass(frozen=True, slots=True)
class _Route:
    """Pieces from one layout and mesh to another."""

    plan: TransferPlan
    pieces: tuple[Piece, ...]
    src: NdSbp
    src_mesh: PlacedMesh
    dst: NdSbp
    dst_mesh: PlacedMesh

    def deliver(
        self, value: torch.Tensor | None, here: int, device: torch.device, issued: list[Issued]
    ) -> torch.Tensor | None:
        """Send and receive; this process's part at the destination, None where it has none."""
        dtype = dtype_of(self.plan.dtype)
        sends, receives, arriving = [], [], []
        for (sender, receiver), pieces in messages(self.pieces, self.src_mesh, self.dst_mesh).items():
            if here not in (sender, receiver):
                continue
            if sender == here:
                buffer = torch.cat([self._part(value, piece).reshape(-1) for piece in pieces])
                sends.append((buffer, receiver))
            else:
                buffer = torch.empty(sum(piece.block.num_elements for piece in pieces), dtype=dtype, device=device)
                receives.append((buffer, sender))
                arriving.append((pieces, buffer))
            issued.append(Issued("p2p", buffer.numel() * buffer.element_size(), (sender, receiver)))
        _dist.send_and_receive(sends, receives)
        rank = self.dst_mesh.rank_of(here)
        if rank is None:
            return None
        out = torch.zeros(block_of(self.plan.shape, self.dst, self.dst_mesh, rank).size, dtype=dtype, device=device)
        for piece in kept(self.pieces, self.src_mesh, self.dst_mesh):
            if piece.target == rank:
                self._put(out, piece, self._part(value, piece))
        for pieces, buffer in arriving:
            start = 0
            for piece in pieces:
                end = start + piece.block.num_elements
                self._put(out, piece, buffer[start:end].view(piece.block.size))
                start = end
        return out

    def _part(self, value: torch.Tensor | None, piece: Piece) -> torch.Tensor:
        assert value is not None
        return value[piece.block.within(block_of(self.plan.shape, self.src, self.src_mesh, piece.source))]

    def _put(self, out: torch.Tensor, piece: Piece, part: torch.Tensor) -> None:
        place = out[piece.block.within(block_of(self.plan.shape, self.dst, self.dst_mesh, piece.target))]
        if any(sbp.is_partial for sbp in self.src):
            place.add_(part)
        else:
            place.copy_(part)
