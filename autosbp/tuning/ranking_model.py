"""A small network that ranks strategies: the simulator of AutoDist's Algorithm 1, trained with a ranking loss.

Its score is the cost model's ranking plus a correction by a recurrent network over the parameters. The correction is zero
at first, so that the model starts as the cost model. Training on trials also penalises corrections of sampled strategies,
the less the more trials there are: a few trials alone would spoil the ranking of all others.
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
"""Score of a factor e in time: a difference of 10 % makes a rank likely, one of 50 % nearly sure."""
EPOCHS = 100
PENALTY = 0.1
"""Weight of the squared correction of one trial's worth of sampled strategies, in squared units of the score."""


class RankingNetwork(nn.Module):
    """Score of each strategy of a batch, higher is faster.

    ``forward`` takes predicted log seconds (n), features of the whole (n, w), of parameters (n, p, k), and the number
    of each strategy's rows (n); it returns scores (n).
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
    """Tensors this small take longer on several threads, much longer on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class RankingModel:
    """A ``RankingNetwork`` with its training; deterministic for a seed.

    Args:
        examples: features of sampled strategies, at least one: they set the scale of all features, and their ranking by the
            cost model is what training departs from.
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
        """Scores, higher is faster: about -10 for each factor e in time."""
        if not features:
            return []
        with torch.no_grad():
            return [float(score) for score in self.network(*self._tensors(features))]

    def train(self, features: Sequence[StrategyFeatures], seconds: Sequence[float], epochs: int = EPOCHS) -> float:
        """Train on all pairs of trials whose times differ; the final loss.

        Args:
            seconds: measured step times; infinite for failed trials.
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
        """What the network adds to the scores of the examples; a constant changes no ranking."""
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
