"""Chunk costs of a pipeline as sums of work items that lie whole in a chunk, and the cheapest cuts of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.native import LOOPS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
STEP, PASSES, FORWARD, BACKWARD, DEFERRED_WGRAD, ONCE_PER_STEP, GATHERED_PARAMETERS = range(7)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPassWeights:
    """Weights of each chunk's costs; every array has one entry per chunk.

    ``forward``, ``backward`` and ``put_off`` (deferred weight gradients) count one microbatch's passes. ``once`` is the
    chunk's share of what its stage does once a step."""

    forward: Floats
    backward: Floats
    deferred_wgrad: Floats
    once: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ChunkWorkItems:
    """Work items, each between two of the ``num_borders`` places where chunks may begin or end, the model's ends included.

    ``begins`` and ``ends`` are borders, sorted by end. ``columns`` [7, item] are least seconds: of a whole step on one
    stage; of a microbatch's passes; of its forward pass, and of its backward pass; of the part of backward that can be
    deferred; of what happens once a step; and of what costs extra either once a step, or spread over one forward and
    one backward pass. A step has ``count`` microbatches."""

    begins: Ints
    ends: Ints
    columns: Floats
    num_borders: int
    count: int

    def weighted(self, weights: ChunkPassWeights) -> Floats:
        """Factors [..., column] of ``columns`` for the weights of chunks.

        Passes that all kinds have in common count as parts of a whole step as far as once-a-step work counts with them:
        one layout must serve all of them, so it is not the best for each by itself. Parameters may be gathered once a
        step or for each use: the ``GATHERED_PARAMETERS`` column counts where both once-a-step work and passes do."""
        common = np.minimum(np.minimum(weights.forward, weights.backward), weights.deferred_wgrad)
        step = np.minimum(weights.once, common / self.count)
        shared = np.minimum(weights.once, np.minimum(weights.forward, weights.backward)) - step
        late = np.maximum(0.0, weights.backward - weights.deferred_wgrad)
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
        """[chunk, column] seconds of a model that is cut at these borders."""
        borders = [0, *cuts, self.num_borders - 1]
        firsts, lasts = np.array(borders[:-1])[:, None], np.array(borders[1:])[:, None]
        inside = (self.begins >= firsts) & (self.ends <= lasts)
        return inside @ self.columns.T

    def even(self, chunks: int) -> list[int]:
        """Cuts that give each chunk about the same seconds of a step."""
        before = np.cumsum(np.bincount(self.ends, self.columns[STEP], self.num_borders))
        cuts = np.searchsorted(before, before[-1] * np.arange(1, chunks) / chunks)
        # Each chunk has at least one op.
        cuts = np.maximum.accumulate(cuts - np.arange(chunks - 1)) + np.arange(chunks - 1)
        return [
            int(cut) for cut in np.clip(cuts, np.arange(1, chunks), self.num_borders - chunks + np.arange(chunks - 1))
        ]

    def least(self, weights: ChunkPassWeights, prices: Floats, lowest: Ints, highest: Ints) -> tuple[float, list[int]]:
        """Least weighted seconds over all ways to cut, and the borders of the best cuts.

        Args:
            weights: of the chunks.
            prices: [cut, inner border] seconds of a cut after each chunk but the last.
            lowest, highest: [cut] first and last border that each cut may use.
        """
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
        """The compiled loop ``cut_works`` in NumPy, bit for bit."""
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
