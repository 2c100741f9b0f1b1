"""Compressors: lossy sums of gradients over replicas, with error feedback (Karimireddy et al. 2019).

PyTorch's communication hooks (``torch.distributed.algorithms.ddp_comm_hooks``) have the same encodings but cannot be used
here: they average instead of summing, their collectives are not recorded, and they need DistributedDataParallel's buckets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from autosbp.executor.synchronizers._transport import Transport
from autosbp.plan.synchronizers import BF16, FP16, POWER_SGD
from autosbp.plan.synchronizers import Compressor as Options
from autosbp.program.gradient_messages import Message

HALF = {FP16: torch.float16, BF16: torch.bfloat16}
Sum = Callable[[torch.Tensor], None]
"""Sums a flat tensor over the replicas, in place."""


class Compressor(ABC):
    """Lossy sum of one message over the replicas.

    With ``options.error_feedback``, the compression error of this replica is added to its next gradient.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._residual: torch.Tensor | None = None

    def sum(self, flat: torch.Tensor, add: Sum) -> None:
        """Replace ``flat`` by its approximate sum over the replicas; ``add`` is the exact sum of a flat tensor."""
        if self.options.error_feedback and self._residual is not None:
            flat.add_(self._residual)
        given = flat.clone() if self.options.error_feedback else flat
        sent = self._sum(flat, add)
        if self.options.error_feedback:
            self._residual = given.sub_(sent)

    @abstractmethod
    def _sum(self, flat: torch.Tensor, add: Sum) -> torch.Tensor:
        """Replace ``flat`` by the approximate sum; returns this replica's contribution to it."""


class HalfPrecision(Compressor):
    """Rounds gradients to 16 bits and sums them in 16 bits."""

    @property
    def dtype(self) -> torch.dtype:
        return HALF[self.options.name]

    def encode(self, flat: torch.Tensor) -> torch.Tensor:
        """The rounded message of this replica; with error feedback, the rounding error is kept for the next one."""
        if self.options.error_feedback and self._residual is not None:
            flat.add_(self._residual)
        rounded = flat.to(self.dtype)
        if self.options.error_feedback:
            self._residual = flat - rounded
        return rounded

    def _sum(self, flat: torch.Tensor, add: Sum) -> torch.Tensor:
        total = flat.to(self.dtype)
        sent = total.to(flat.dtype)
        add(total)
        flat.copy_(total)
        return sent


class PowerSgd(Compressor):
    """PowerSGD: rank-r factors by one power iteration that starts from those of the last step.

    See Vogels et al. 2019, algorithm 1. A shard is viewed as a matrix (first dim, all other dims); if its factors would
    not be smaller than the matrix, it is summed exactly.
    """

    def __init__(self, options: Options, message: Message) -> None:
        super().__init__(options)
        self.message = message
        self._rights: list[torch.Tensor | None] = [None] * len(message.shards)

    def _sum(self, flat: torch.Tensor, add: Sum) -> torch.Tensor:
        parts = torch.split(flat, [shard.num_elements for shard in self.message.shards])
        ranks = self.message.power_sgd_ranks()
        rows = [shard.shape[0] if shard.shape else 1 for shard in self.message.shards]
        matrices = [part.view(count, -1) for part, count in zip(parts, rows, strict=True)]
        lefts = [
            matrix @ self._right(at, matrix, rank) if rank else matrix
            for at, (matrix, rank) in enumerate(zip(matrices, ranks, strict=True))
        ]
        given = flat.clone()
        lefts = _summed(lefts, add)
        factors = [(at, torch.linalg.qr(lefts[at])[0]) for at, rank in enumerate(ranks) if rank]
        own = [matrices[at].t() @ left for at, left in factors]
        rights = _summed(own, add) if own else []
        sent = given
        sent_parts = torch.split(sent, [shard.num_elements for shard in self.message.shards])
        for (at, left), mine, right in zip(factors, own, rights, strict=True):
            sent_parts[at].view(rows[at], -1).copy_(left @ mine.t())
            matrices[at].copy_(left @ right.t())
            self._rights[at] = right
        for at, rank in enumerate(ranks):
            if not rank:
                matrices[at].copy_(lefts[at])
        return sent

    def _right(self, at: int, matrix: torch.Tensor, rank: int) -> torch.Tensor:
        """Orthonormal right factor of a matrix, equal on all replicas; random in the first step."""
        right = self._rights[at]
        if right is None:
            generator = torch.Generator().manual_seed(at)
            right = torch.randn(matrix.shape[1], rank, generator=generator, dtype=torch.float64).to(matrix)
        orthogonal: torch.Tensor = torch.linalg.qr(right)[0]
        return orthogonal


def _summed(tensors: list[torch.Tensor], add: Sum) -> list[torch.Tensor]:
    """Sums of several tensors over the replicas, in one message."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    add(flat)
    pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


class TopK(Compressor):
    """Gathers the indices and values of each replica's largest elements and sums them."""

    def __init__(self, options: Options, message: Message, transport: Transport) -> None:
        super().__init__(options)
        self.message, self.transport = message, transport

    def _sum(self, flat: torch.Tensor, add: Sum) -> torch.Tensor:  # noqa: ARG002 - it gathers
        _, places = flat.abs().topk(self.message.top_k_elements(), sorted=False)
        values = flat[places]
        sent = torch.zeros_like(flat).index_copy_(0, places, values)
        everywhere = self.transport.all_gather(places.to(torch.int32), self.message.axes)
        everything = self.transport.all_gather(values, self.message.axes)
        flat.zero_().index_add_(0, everywhere.to(torch.int64), everything)
        return sent


def make_compressor(message: Message, transport: Transport) -> Compressor | None:
    """The message's compressor, or None."""
    options = message.sync.compressor
    if options is None:
        return None
    if options.name in HALF:
        return HalfPrecision(options)
    return PowerSgd(options, message) if options.name == POWER_SGD else TopK(options, message, transport)
