"""Neural ranking model: the simulator of AutoDist's Algorithm 1, trained with a pairwise ranking loss.

The score is the negative log of the predicted step time plus a correction by a recurrent network over the parameters.
The correction starts at zero, so the untrained model ranks like the cost model. Training ranks trials by their measured
times, and penalizes corrections at sampled strategies, the less the more trials there are: without that, a few trials
spoil the ranking of all other strategies.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from autosbp.tuning.features import StrategyFeatures
from autosbp.tuning.ranking import ordered_pairs

HIDDEN = 24
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-3
SCALE = 10.0
"""Difference in score of two strategies whose times differ by a factor of e.

So a difference of 10 % in time makes an order likely, and one of 50 % nearly certain.
"""
EPOCHS = 100
PENALTY = 0.1
"""Weight of the variance of the corrections at sampled strategies, divided by the number of trials."""


class RankingNetwork(nn.Module):
    """Network that scores a batch of n strategies; higher is faster.

    ``forward`` takes the log of predicted step times (n), features of whole strategies (n, num_whole), features of
    parameters (n, p, num_parameter) padded to p rows, and the number of rows of each strategy (n). It returns scores (n).
    """

    def __init__(self, num_whole: int, num_parameter: int) -> None:
        super().__init__()
        self.recurrent = nn.GRU(num_parameter, HIDDEN, batch_first=True)
        self.mixed = nn.Sequential(nn.Linear(2 * HIDDEN + num_whole, HIDDEN), nn.Tanh())
        self.added = nn.Linear(HIDDEN, 1)
        nn.init.zeros_(self.added.weight)
        nn.init.zeros_(self.added.bias)

    def forward(
        self, log_step_s: torch.Tensor, whole: torch.Tensor, parameters: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        states, _ = self.recurrent(parameters)
        at = torch.arange(parameters.shape[1])
        mask = (at < lengths[:, None]).to(states.dtype).unsqueeze(-1)
        mean = (states * mask).sum(1) / lengths[:, None]
        last = states[torch.arange(len(lengths)), lengths - 1]
        added = self.added(self.mixed(torch.cat([mean, last, whole], dim=1))).squeeze(1)
        scores: torch.Tensor = SCALE * (added - log_step_s)
        return scores


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: for tensors this small, more threads are slower, especially on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class RankingModel:
    """A ``RankingNetwork`` with its optimizer and normalization; deterministic for a seed.

    Args:
        examples: features of sampled strategies, at least one, from which means and standard deviations are taken, and at
            which corrections are penalized.
        seed: seed of the initial weights.
    """

    def __init__(self, examples: Sequence[StrategyFeatures], seed: int = 0) -> None:
        whole = np.stack([each.whole for each in examples])
        rows = np.concatenate([each.parameters for each in examples])
        self._center, self._spread = whole.mean(0), whole.std(0) + 1e-3
        self._row_center, self._row_spread = rows.mean(0), rows.std(0) + 1e-3
        self._log_s = float(np.median([each.log_step_s for each in examples]))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network = RankingNetwork(whole.shape[1], rows.shape[1])
        self._examples = self._tensors(examples)
        self.optimizer = torch.optim.Adam(self.network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def copy(self) -> RankingModel:
        """An independent model with the same weights."""
        return copy.deepcopy(self)

    def scores(self, features: Sequence[StrategyFeatures]) -> list[float]:
        """Scores, higher is faster; a strategy that takes e times as long scores about ``SCALE`` lower."""
        if not features:
            return []
        with torch.no_grad():
            return [float(score) for score in self.network(*self._tensors(features))]

    def train(self, features: Sequence[StrategyFeatures], seconds: Sequence[float], epochs: int = EPOCHS) -> float:
        """Train on all pairs of strategies whose times differ.

        Args:
            features: features of the strategies.
            seconds: their step times; infinite for failed trials.
            epochs: number of optimizer steps, each on all pairs.

        Returns:
            The loss of the last epoch; 0 if no times differ.
        """
        pairs = ordered_pairs(seconds)
        if not len(pairs):
            return 0.0
        inputs = self._tensors(features)
        faster, slower = torch.from_numpy(pairs).unbind(1)
        loss: Any = torch.zeros(())
        with _one_thread():
            for _ in range(epochs):
                scores = self.network(*inputs)
                loss = nn.functional.softplus(scores[slower] - scores[faster]).mean()
                loss = loss + PENALTY / len(features) * self._corrections().var(unbiased=False)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        return float(loss.detach())

    def _corrections(self) -> torch.Tensor:
        """The network's corrections at the examples, in units of the score."""
        corrections: torch.Tensor = self.network(*self._examples) + SCALE * self._examples[0]
        return corrections

    def _tensors(self, features: Sequence[StrategyFeatures]) -> tuple[torch.Tensor, ...]:
        lengths = [len(each.parameters) for each in features]
        rows = np.zeros((len(features), max(lengths), len(self._row_center)), dtype=np.float32)
        for at, each in enumerate(features):
            rows[at, : lengths[at]] = (each.parameters - self._row_center) / self._row_spread
        whole = np.stack([(each.whole - self._center) / self._spread for each in features])
        logs = torch.tensor([each.log_step_s - self._log_s for each in features], dtype=torch.float32)
        return logs, torch.from_numpy(whole).float(), torch.from_numpy(rows), torch.tensor(lengths)
