"""A transformer with mixtures of experts, dispatched densely as in GShard (arXiv 2006.16668, algorithm 1).

Every tensor is dense and every op is linear algebra, so a mesh axis can shard the expert dim. Letters: g groups
(sequences), s tokens of a group, e experts, c slots of an expert, m model width, h hidden width.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class MoE(nn.Module):
    """Mixture of ``experts`` feed-forward layers, top-2 routing, at most ``slots`` tokens of a group per expert."""

    def __init__(self, width: int, hidden: int, experts: int, slots: int) -> None:
        super().__init__()
        self.experts, self.slots = experts, slots
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, hidden).normal_(std=width**-0.5))
        self.down = nn.Parameter(torch.empty(experts, hidden, width).normal_(std=hidden**-0.5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Route ``x``, (g, s, m), through the experts.

        Returns:
            The output, (g, s, m), zero for tokens beyond an expert's slots, and the balance loss.
        """
        gates = functional.softmax(self.gate(x), dim=-1)
        values, chosen = gates.topk(2, dim=-1)
        first, second = (functional.one_hot(chosen[..., at], self.experts) for at in range(2))
        weights = values / values.sum(dim=-1, keepdim=True)
        combine = weights[..., :1, None] * self._slots(first, torch.zeros_like(first[:, :1]))
        combine = combine + weights[..., 1:, None] * self._slots(second, first.sum(dim=1, keepdim=True))
        dispatch = (combine > 0).to(x.dtype)
        inputs = torch.einsum("gsec,gsm->egcm", dispatch, x)
        inner = functional.relu(torch.einsum("egcm,emh->egch", inputs, self.up))
        outputs = torch.einsum("egch,ehm->egcm", inner, self.down)
        load = first.to(x.dtype).mean(dim=1) * gates.mean(dim=1)
        return torch.einsum("gsec,egcm->gsm", combine, outputs), load.sum(dim=-1).mean() * self.experts

    def _slots(self, mask: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
        """Slot of each token, (g, s, e, c): tokens take the slots of their expert in order, after ``taken`` ones."""
        before = mask.cumsum(dim=1) - mask + taken
        place = (before * mask).sum(dim=-1).clamp(max=self.slots)
        slot = functional.one_hot(place, self.slots + 1)[..., : self.slots]
        return torch.einsum("gse,gsc->gsec", mask.to(self.up.dtype), slot.to(self.up.dtype))


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (layer(x).unflatten(-1, (self.heads, -1)) for layer in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
        )
        out: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Two layers: attention with a feed-forward, and attention with a mixture of experts (GShard, section 2.2)."""

    def __init__(self, width: int, hidden: int, heads: int, experts: int, slots: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.attention = nn.ModuleList(Attention(width, heads) for _ in range(2))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.mixture = MoE(width, hidden, experts, slots)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x + self.attention[0](self.norms[0](x))
        x = x + self.down(functional.relu(self.up(self.norms[1](x))))
        x = x + self.attention[1](self.norms[2](x))
        mixed, balance = self.mixture(self.norms[3](x))
        return x + mixed, balance


class MoETransformer(nn.Module):
    """A causal language model of ``blocks`` blocks.

    Args:
        vocabulary, length: vocabulary size, and tokens of a sequence.
        blocks: number of ``Block`` modules, of two layers each.
        width, hidden, heads: sizes of attention, of feed-forward layers and of experts.
        experts: number of experts of each mixture.
        capacity: a sequence fills at most ``capacity * 2 * length / experts`` slots of each expert.
        balance: weight of the balance loss.
    """

    def __init__(
        self,
        vocabulary: int,
        length: int,
        blocks: int,
        width: int,
        hidden: int,
        heads: int,
        experts: int,
        capacity: float = 1.0,
        balance: float = 0.01,
    ) -> None:
        super().__init__()
        slots = math.ceil(capacity * 2 * length / experts)
        self.balance = balance
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(length, width).normal_(std=0.02))
        self.blocks = nn.ModuleList(Block(width, hidden, heads, experts, slots) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``tokens`` and ``labels`` (the next tokens) are (batch, length).

        Returns:
            The cross-entropy plus the weighted mean balance loss, and the logits.
        """
        x = self.tokens(tokens) + self.positions
        balances = []
        for block in self.blocks:
            x, balance = block(x)
            balances.append(balance)
        logits = self.head(self.norm(x))
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return loss + self.balance * sum(balances) / len(balances), logits
