"""Wide & Deep (arXiv 1606.07792) for click-through rates: a linear model over categories plus a deep model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional


class WideDeep(nn.Module):
    """The sum of a wide logit (one weight per category) and a deep logit (embedded categories and dense features).

    Args:
        rows: number of categories of each sparse field; an id is hashed to ``id % rows``.
        dense: number of dense features.
        width: width of the deep embeddings.
        hidden: widths of the deep part's layers.
    """

    def __init__(self, rows: Sequence[int], dense: int, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.rows = tuple(rows)
        self.wide = nn.ModuleList(nn.Embedding(count, 1) for count in rows)
        self.tables = nn.ModuleList(nn.Embedding(count, width) for count in rows)
        sizes = (dense + width * len(rows), *hidden)
        self.layers = nn.ModuleList(nn.Linear(one, two) for one, two in zip(sizes[:-1], sizes[1:], strict=True))
        self.last = nn.Linear(sizes[-1], 1)

    def forward(
        self, dense: torch.Tensor, ids: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``dense`` is (batch, features), ``ids`` (batch, fields) and ``labels`` (batch,), 1 for a click.

        Returns:
            The binary cross-entropy and the logits, (batch,).
        """
        fields = [ids[:, at] % count for at, count in enumerate(self.rows)]
        wide = sum(table(field) for table, field in zip(self.wide, fields, strict=True))
        deep = torch.cat([dense, *(table(field) for table, field in zip(self.tables, fields, strict=True))], 1)
        for layer in self.layers:
            deep = functional.relu(layer(deep))
        logits = (wide + self.last(deep)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype)), logits
