"""Chunks of a pipeline as sums of works that lie whole in them, and the ways to cut a model that take least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.native import LOOPS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
STEP, PASSES, FORWARD, BACKWARD, PUT_OFF, ONCE, SHARED = range(7)


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """How often each chunk's passes count, forward, backward, and those that gradients of weights are put off to, of one
    microbatch each; and each chunk's part of what its stage does once a step: an entry a chunk."""

    forward: Floats
    backward: Floats
    put_off: Floats
    once: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ChunkWork:
    """Works between two of the ``num_borders`` where chunks may begin or end, the model's ends among them: ``begins`` and
    ``ends`` are borders, least ends first. ``columns`` are the least seconds of each: of a whole step on one stage; of a
    microbatch's passes; of these forward, and backward; of backward what may be put off; of what is once a step; and what is
    more once, or else shared between one pass forward and one backward. ``count`` microbatches are a step."""

    begins: Ints
    ends: Ints
    columns: Floats
    num_borders: int
    count: int

    def weighted(self, weights: Weights) -> Floats:
        """[..., columns] for the weights of chunks: passes that all kinds have in common are of the whole step as far as
        what is once a step counts along, as layouts are not the best for each by itself. Parameters may be gathered once a
        step or in each use: that counts where both what is once and passes do."""
        common = np.minimum(np.minimum(weights.forward, weights.backward), weights.put_off)
        step = np.minimum(weights.once, common / self.count)
        shared = np.minimum(weights.once, np.minimum(weights.forward, weights.backward)) - step
        late = np.maximum(0.0, weights.backward - weights.put_off)
        return np.stack(
            [
                step,
                common - step * self.count,
                weights.forward - common,
                weights.backward - common,
                -late,
                weights.once - step,
                np.maximum(shared, 0.0),
            ],
            axis=-1,
        )

    def of_chunks(self, cuts: Sequence[int]) -> Floats:
        """[chunk, column] of a model that is cut at these borders."""
        borders = [0, *cuts, self.num_borders - 1]
        firsts, lasts = np.array(borders[:-1])[:, None], np.array(borders[1:])[:, None]
        inside = (self.begins >= firsts) & (self.ends <= lasts)
        return inside @ self.columns.T

    def even(self, chunks: int) -> list[int]:
        """Cuts at which about as much of a step is in each chunk."""
        before = np.cumsum(np.bincount(self.ends, self.columns[STEP], self.num_borders))
        cuts = np.searchsorted(before, before[-1] * np.arange(1, chunks) / chunks)
        # Each chunk has an op.
        cuts = np.maximum.accumulate(cuts - np.arange(chunks - 1)) + np.arange(chunks - 1)
        return [
            int(cut) for cut in np.clip(cuts, np.arange(1, chunks), self.num_borders - chunks + np.arange(chunks - 1))
        ]

    def least(self, weights: Weights, prices: Floats, lowest: Ints, highest: Ints) -> tuple[float, list[int]]:
        """The least of some ways to cut, and the borders that it cuts at: chunks by their weights, and ``prices`` of a cut
        behind each chunk but the last at each border within, [cut, border]; each cut from its ``lowest`` to its ``highest``
        border."""
        works = np.ascontiguousarray(self.weighted(weights) @ self.columns)
        chunks, borders = len(works), self.num_borders
        paid = np.zeros((chunks, borders))
        paid[:-1, 1:-1] = prices
        end = np.array([borders - 1], dtype=np.int64)
        lowest, highest = np.concatenate([lowest, end]), np.concatenate([highest, end])
        least, sources = np.full((chunks + 1, borders), np.inf), np.zeros((chunks, borders), dtype=np.int64)
        least[0, 0] = 0.0
        if LOOPS is not None:
            LOOPS.cut_works(self.begins, self.ends, works, paid, lowest, highest, least, sources)
        else:
            self._cut(works, paid, lowest.tolist(), highest.tolist(), least, sources)
        cuts, at = [], borders - 1
        for chunk in range(chunks - 1, 0, -1):
            at = int(sources[chunk, at])
            cuts.append(at)
        return float(least[chunks, -1]), cuts[::-1]

    def _cut(
        self, works: Floats, paid: Floats, lowest: list[int], highest: list[int], least: Floats, sources: Ints
    ) -> None:
        """As the compiled loop does it, bit for bit."""
        firsts = np.searchsorted(self.ends, np.arange(self.num_borders + 1)).tolist()
        begins = self.begins.tolist()
        first = last = 0
        for chunk, own in enumerate(works):
            now = least[chunk].copy()
            for border in range(first + 1, highest[chunk] + 1):
                for item in range(firsts[border], firsts[border + 1]):
                    now[first : min(begins[item], last) + 1] += own[item]
                if border >= lowest[chunk]:
                    best = first + int(now[first : min(border, last + 1)].argmin())
                    sources[chunk, border] = best
                    least[chunk + 1, border] = now[best] + paid[chunk, border]
            first, last = lowest[chunk], highest[chunk]
