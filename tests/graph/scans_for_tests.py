"""Models whose layers are scans of torch: recurrences over the tokens of a sequence."""

from __future__ import annotations

import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan

Tensor = torch.Tensor


class StateSpace(nn.Module):
    """A selective state space layer between two linear ones; its step reads a parameter from outside."""

    def __init__(self, width: int = 24, states: int = 6, reverse: bool = False) -> None:
        super().__init__()
        self.inner, self.delta, self.out = (nn.Linear(width, width) for _ in range(3))
        self.gates = nn.Linear(width, 2 * states)
        self.decay = nn.Parameter(torch.zeros(width, states))
        self.states, self.reverse = states, reverse

    def forward(self, x: Tensor) -> Tensor:
        decay = -torch.exp(self.decay)
        b, c = self.gates(x).split(self.states, -1)

        def step(state: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            u, delta, b, c = now
            delta = delta.unsqueeze(-1)
            state = torch.exp(decay * delta) * state + delta * b.unsqueeze(1) * u.unsqueeze(-1)
            return state, (state @ c.unsqueeze(-1)).squeeze(-1)

        first = x.new_zeros(x.shape[0], x.shape[2], self.states)
        slices = (self.inner(x), nn.functional.softplus(self.delta(x)), b, c)
        last, found = scan(step, first, slices, dim=1, reverse=self.reverse)
        loss: Tensor = self.out(found).square().mean() + last.square().mean()
        return loss


class TwoStates(nn.Module):
    """Two states of other shapes, of which one is not differentiable, and a step with a norm, a softmax and a maximum."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.into, self.norm, self.own = (
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.Linear(width, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        def step(states: tuple[Tensor, Tensor], now: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
            state, seen = states
            state = torch.maximum(self.norm(state + now), 0.5 * self.own(state).softmax(-1))
            return (state, seen + 1), state / seen.unsqueeze(-1)

        first = (torch.zeros_like(x[:, 0]), torch.ones(x.shape[0], dtype=torch.int64))
        _, found = scan(step, first, self.into(x), dim=1)
        loss: Tensor = found.square().sum()
        return loss


class Averages(nn.Module):
    """A linear recurrence by torch's associative scan."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.into, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        def combine(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return left[0] * right[0], right[0] * left[1] + right[1]

        pair = (self.gate(x).sigmoid(), self.into(x))
        found = associative_scan(combine, pair, dim=1, combine_mode="generic")
        out: Tensor = found[1].square().mean()
        return out


class Transcriber(nn.Module):
    """Connectionist temporal classification of frames, of which not all count."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(12, 7)

    def forward(self, x: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        log_probs = self.scores(x).log_softmax(-1).transpose(0, 1)
        frames = torch.full_like(counts, x.shape[1] - 1)
        return nn.functional.ctc_loss(log_probs, labels, frames, counts, blank=2)


class Growing(nn.Module):
    """Refused: its state changes its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        def step(state: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
            return torch.cat([state, now], -1), now.clone()

        found: Tensor = scan(step, torch.zeros_like(x[:, 0]), self.into(x), dim=1)[1]
        return found.mean()


def factory() -> tuple[nn.Module, dict[str, Tensor]]:
    return StateSpace(), {"x": torch.zeros(4, 9, 24)}
