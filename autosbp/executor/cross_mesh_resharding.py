"""Cross-mesh resharding on every process: boxing, messages, boxing; backward in the opposite direction.

A process that only sends its part still has to take part in backward, but holds no result to call ``backward`` on. So
every process of a transfer gets a *token*, an empty tensor; ``backward`` is called on the loss, where there is one, and
on all tokens. Autograd runs nodes in reverse order of creation, so processes that make the same transfers in the same
order meet again in backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from autosbp.costmodel.cross_mesh_resharding import TransferPlan
from autosbp.executor import _torch_distributed, comm_ops
from autosbp.executor.runtime import IssuedCollective, Runtime
from autosbp.graph.to_fx import torch_dtype
from autosbp.program.cross_mesh_resharding import TransferPiece, block_of, local_pieces, remote_messages
from autosbp.program.placed_mesh import PlacedMesh
from autosbp.sbp.layout import NdSbp, gradient_sbp, local_shape


def transfer(
    x: torch.Tensor | None,
    plan: TransferPlan,
    source: Runtime | None,
    target: Runtime | None,
    here: int,
    device: torch.device,
    issued: list[IssuedCollective],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Transfer a tensor between meshes; call on every process of both meshes; other processes return at once.

    Args:
        x: this process's part in ``plan.src``; None outside the source mesh.
        source, target: this process's runtimes on the two meshes, with their groups; None outside of them.
        here: number of this process, which ``plan``'s meshes call a device.
        device: device of received parts.
        issued: gets a record ``("p2p", bytes, (from, to))`` of each message that this process sends or receives.

    Returns:
        This process's part in ``plan.dst``, None outside the destination mesh; and the token, None if no gradient flows
        or the process takes no part.
    """
    if source is None and target is None:
        return None, None
    if source is not None:
        assert x is not None
        x = comm_ops.run_steps(x, plan.prepare, source)
    tracked = plan.differentiable and torch.is_grad_enabled()
    if tracked:
        start = torch.empty(0, requires_grad=True) if x is None else x
        apply: Any = _Transfer.apply
        received, token = apply(start, plan, here, device, issued)
    else:
        received, token = _forward(x, plan, here, device, issued), None
    if target is None:
        return None, token
    return comm_ops.run_steps(received, plan.finish, target), token


class _Transfer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, plan: TransferPlan, here: int, device: torch.device, issued: list[IssuedCollective]
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
            grad = torch.zeros(shape, dtype=torch_dtype(plan.dtype), device=device)
        received, sent = (tuple(map(gradient_sbp, layout)) for layout in (plan.received, plan.sent))
        route = _PieceRoute(plan, plan.backward, received, plan.dst_mesh, sent, plan.src_mesh)
        return route.deliver(grad, here, device, issued), None, None, None, None


def _forward(
    x: torch.Tensor | None, plan: TransferPlan, here: int, device: torch.device, issued: list[IssuedCollective]
) -> torch.Tensor:
    route = _PieceRoute(plan, plan.forward, plan.sent, plan.src_mesh, plan.received, plan.dst_mesh)
    out = route.deliver(x, here, device, issued)
    return torch.empty(0) if out is None else out


@dataclass(frozen=True, slots=True)
class _PieceRoute:
    """Pieces from one layout and mesh to another."""

    plan: TransferPlan
    pieces: tuple[TransferPiece, ...]
    src: NdSbp
    src_mesh: PlacedMesh
    dst: NdSbp
    dst_mesh: PlacedMesh

    def deliver(
        self, value: torch.Tensor | None, here: int, device: torch.device, issued: list[IssuedCollective]
    ) -> torch.Tensor | None:
        """Send and receive; returns this process's part at the destination, None if it has none."""
        dtype = torch_dtype(self.plan.dtype)
        sends, receives, arriving = [], [], []
        for (sender, receiver), pieces in remote_messages(self.pieces, self.src_mesh, self.dst_mesh).items():
            if here not in (sender, receiver):
                continue
            if sender == here:
                buffer = torch.cat([self._part(value, piece).reshape(-1) for piece in pieces])
                sends.append((buffer, receiver))
            else:
                buffer = torch.empty(sum(piece.block.num_elements for piece in pieces), dtype=dtype, device=device)
                receives.append((buffer, sender))
                arriving.append((pieces, buffer))
            issued.append(IssuedCollective("p2p", buffer.numel() * buffer.element_size(), (sender, receiver)))
        _torch_distributed.send_and_receive(sends, receives)
        rank = self.dst_mesh.rank_of(here)
        if rank is None:
            return None
        out = torch.zeros(block_of(self.plan.shape, self.dst, self.dst_mesh, rank).size, dtype=dtype, device=device)
        for piece in local_pieces(self.pieces, self.src_mesh, self.dst_mesh):
            if piece.target == rank:
                self._put(out, piece, self._part(value, piece))
        for pieces, buffer in arriving:
            start = 0
            for piece in pieces:
                end = start + piece.block.num_elements
                self._put(out, piece, buffer[start:end].view(piece.block.size))
                start = end
        return out

    def _part(self, value: torch.Tensor | None, piece: TransferPiece) -> torch.Tensor:
        assert value is not None
        return value[piece.block.within(block_of(self.plan.shape, self.src, self.src_mesh, piece.source))]

    def _put(self, out: torch.Tensor, piece: TransferPiece, part: torch.Tensor) -> None:
        place = out[piece.block.within(block_of(self.plan.shape, self.dst, self.dst_mesh, piece.target))]
        if any(sbp.is_partial for sbp in self.src):
            place.add_(part)
        else:
            place.copy_(part)
