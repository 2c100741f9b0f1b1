"""Paths through the passes of a pipeline's step: each pass waits for the one before it on its stage, and for its input.

A step takes no less than any path that ends with all that a stage does. How often a path goes through each chunk's passes
does not depend on what these take, so that its length is a sum over chunks, wherever the model is cut.

With zero bubble, stages may let gradients of weights wait for as many backward passes as there is room for, or fewer.
Orders differ in nothing but where these gradients come: of those between two passes of a path, the fewest under any of the
orders count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.pipeline import Orders, orders_of, run_orders
from autosbp.costmodel.pipeline_passes import KINDS, WEIGHTS, stage_order
from autosbp.pipeline import Pipeline

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LONGEST = 3
"""Paths that one simulation tells, each to the end of another stage."""
LATE = KINDS.index(WEIGHTS)


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """How often a path goes through the passes of each kind and chunk, [kind, chunk]; and the ``stage`` at whose end it
    is."""

    often: Floats
    stage: int


class CriticalPaths:
    """Of a schedule whose stages wait for all that they send, whatever its ``weights_lag``."""

    def __init__(self, pipeline: Pipeline, num_micro: int) -> None:
        self.pipeline, self.num_micro = pipeline, num_micro
        lags: Sequence[int | None] = (None, 0) if pipeline.schedule.splits_backward else (None,)
        self._orders = [_Ordered(orders_of(replace(pipeline, weights_lag=lag), num_micro), self) for lag in lags]
        self._late = [self._late_of(stage) for stage in range(pipeline.num_stages)]

    def longest(self, own_s: Floats, sends_s: Floats, once_s: Floats) -> tuple[float, list[Path]]:
        """What a step takes under one of the orders, at the least, by about, and what it waits for: the longest path to its
        end, and to those of some more stages.

        Args:
            own_s, sends_s: [kind, chunk], of a microbatch, and of what it sends; ``once_s``: of each stage, behind all passes.
        """
        found: list[Path] = []
        least = np.inf
        own, sends = own_s.ravel().tolist(), sends_s.ravel().tolist()
        took = np.repeat((own_s + sends_s).ravel(), self.num_micro)
        for ordered in self._orders:
            ran = run_orders(ordered.orders, own, sends, self.num_micro, beside=False)
            starts, done = np.asarray(ran.starts), np.array(ran.ready) + once_s
            ends = (starts + took).tolist()
            found += [self._path(ordered, stage, ends) for stage in np.argsort(-done, kind="stable")[:LONGEST].tolist()]
            least = min(least, float(done.max()))
        return least, found

    def _path(self, ordered: _Ordered, stage: int, ends: list[float]) -> Path:
        """From the end of a stage back to what began at once."""
        stages, chunks = self.pipeline.num_stages, self.pipeline.num_chunks
        through: list[int] = []
        often = np.zeros((len(KINDS), chunks))
        at, own, behind = ordered.last[stage], stage, len(self._late[stage][0]) - 1
        while at >= 0:
            before, source = ordered.before[at], ordered.sources[at]
            place = ordered.places[at]
            if place >= 0:
                through.append(at)
                if source >= 0 and (before < 0 or ends[source] > ends[before]):
                    self._count(often, own, place, behind)
                    own, at = source // self.num_micro % chunks % stages, source
                    behind = ordered.places[source]
                    continue
            at = before
        self._count(often, own, 0, behind)
        counted = np.bincount(np.array(through) // self.num_micro, minlength=len(KINDS) * chunks)
        return Path(often + counted.reshape(len(KINDS), chunks), stage)

    def _count(self, often: Floats, stage: int, first: int, behind: int) -> None:
        """Gradients of weights of a stage's chunks between two of its other passes, by their places."""
        late = self._late[stage]
        often[LATE, stage :: self.pipeline.num_stages] += (late[:, behind] - late[:, first]).min(axis=0)

    def _late_of(self, stage: int) -> Ints:
        """[order, place, chunk]: how many gradients of weights come before each other pass of a stage, and before its
        end."""
        stages, virtual = self.pipeline.num_stages, self.pipeline.num_virtual
        lags = range(stage + 1) if self.pipeline.schedule.splits_backward else (None,)
        found = []
        for lag in lags:
            order = stage_order(replace(self.pipeline, weights_lag=lag), stage, self.num_micro)
            late = order.kinds == LATE
            came = np.cumsum(late[:, None] & (order.chunks[:, None] // stages == np.arange(virtual)), axis=0)
            found.append(np.concatenate([came[~late], came[-1:]]))
        return np.array(found, dtype=np.int64)


class _Ordered:
    """Of each pass by its number, -1 for none: the one before it on its stage, what it waits for, and its place among its
    stage's passes but for gradients of weights. Of each stage the last pass."""

    def __init__(self, orders: Orders, paths: CriticalPaths) -> None:
        self.orders = orders
        passes, firsts = orders.passes, orders.firsts
        each = paths.pipeline.num_chunks * paths.num_micro
        nobody = len(KINDS) * each
        before, sources, places = np.full(nobody, -1), np.full(nobody, -1), np.full(nobody, -1)
        before[passes[1:]] = passes[:-1]
        before[passes[firsts[:-1]]] = -1
        sources[passes] = np.where(orders.sources < nobody, orders.sources, -1)
        for first, end in zip(firsts[:-1], firsts[1:], strict=True):
            own = passes[first:end]
            own = own[own // each != LATE]
            places[own] = np.arange(len(own))
        self.last = passes[firsts[1:] - 1].tolist()
        self.before, self.sources, self.places = before.tolist(), sources.tolist(), places.tolist()
