"""Critical paths through the passes of a pipeline step: a pass waits for the previous one on its stage, and for its input.

A step takes at least as long as any path that ends with the last work of a stage. How often a path goes through each
chunk's passes does not depend on their durations, so its length is a sum over chunks, wherever the model is cut.

With zero bubble, a stage may defer weight gradients by as many backward passes as memory allows, or by fewer. The
orders differ only in where the weight gradients come. Between two passes of a path, the fewest weight gradients under
any order count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.pipeline_timing import PassOrders, pass_orders, simulate_orders
from autosbp.plan.pipeline import Pipeline
from autosbp.schedules.passes import KINDS, WGRAD, stage_order

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_PATHS = 3
"""Paths taken from one simulation, each to the end of a different stage."""
WGRAD_KIND = KINDS.index(WGRAD)


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """How often a path goes through the passes of each kind and chunk, ``often`` [kind, chunk]; it ends with ``stage``."""

    often: Floats
    stage: int


class CriticalPaths:
    """Critical paths of a schedule whose stages wait for all that they send, for any ``weights_lag``."""

    def __init__(self, pipeline: Pipeline, num_micro: int) -> None:
        self.pipeline, self.num_micro = pipeline, num_micro
        lags: Sequence[int | None] = (None, 0) if pipeline.schedule.splits_backward else (None,)
        self._orders = [_PassGraph(pass_orders(replace(pipeline, weights_lag=lag), num_micro), self) for lag in lags]
        self._wgrads_before = [self._count_wgrads_before(stage) for stage in range(pipeline.num_stages)]

    def longest(self, own_s: Floats, sends_s: Floats, once_s: Floats) -> tuple[float, list[CriticalPath]]:
        """Approximate least step time over the orders, and the longest paths to the ends of the slowest stages.

        Args:
            own_s: [kind, chunk] seconds of a microbatch's passes.
            sends_s: [kind, chunk] seconds of a microbatch's sends.
            once_s: [stage] seconds after all passes.
        """
        found: list[CriticalPath] = []
        least = np.inf
        own, sends = own_s.ravel().tolist(), sends_s.ravel().tolist()
        took = np.repeat((own_s + sends_s).ravel(), self.num_micro)
        for ordered in self._orders:
            ran = simulate_orders(ordered.orders, own, sends, self.num_micro, beside=False)
            starts, done = np.asarray(ran.starts), np.array(ran.ready) + once_s
            ends = (starts + took).tolist()
            found += [
                self._path(ordered, stage, ends) for stage in np.argsort(-done, kind="stable")[:MAX_PATHS].tolist()
            ]
            least = min(least, float(done.max()))
        return least, found

    def _path(self, ordered: _PassGraph, stage: int, ends: list[float]) -> CriticalPath:
        """Path from the end of a stage back to a pass that starts at once."""
        stages, chunks = self.pipeline.num_stages, self.pipeline.num_chunks
        through: list[int] = []
        often = np.zeros((len(KINDS), chunks))
        at, own, behind = ordered.last[stage], stage, len(self._wgrads_before[stage][0]) - 1
        while at >= 0:
            before, source = ordered.before[at], ordered.sources[at]
            place = ordered.places[at]
            if place >= 0:
                through.append(at)
                if source >= 0 and (before < 0 or ends[source] > ends[before]):
                    self._add_wgrads(often, own, place, behind)
                    own, at = source // self.num_micro % chunks % stages, source
                    behind = ordered.places[source]
                    continue
            at = before
        self._add_wgrads(often, own, 0, behind)
        counted = np.bincount(np.array(through) // self.num_micro, minlength=len(KINDS) * chunks)
        return CriticalPath(often + counted.reshape(len(KINDS), chunks), stage)

    def _add_wgrads(self, often: Floats, stage: int, first: int, behind: int) -> None:
        """Add the weight gradients of a stage's chunks between two of its other passes, given by their indices."""
        late = self._wgrads_before[stage]
        often[WGRAD_KIND, stage :: self.pipeline.num_stages] += (late[:, behind] - late[:, first]).min(axis=0)

    def _count_wgrads_before(self, stage: int) -> Ints:
        """[order, index, chunk] weight gradients before each other pass of a stage, and before its end."""
        stages, virtual = self.pipeline.num_stages, self.pipeline.num_virtual
        lags = range(stage + 1) if self.pipeline.schedule.splits_backward else (None,)
        found = []
        for lag in lags:
            order = stage_order(replace(self.pipeline, weights_lag=lag), stage, self.num_micro)
            late = order.kinds == WGRAD_KIND
            came = np.cumsum(late[:, None] & (order.chunks[:, None] // stages == np.arange(virtual)), axis=0)
            found.append(np.concatenate([came[~late], came[-1:]]))
        return np.array(found, dtype=np.int64)


class _PassGraph:
    """Passes of one order as linked lists, by pass number; -1 stands for none.

    ``before``: the previous pass on the same stage. ``sources``: the pass whose output it waits for. ``places``: index
    among its stage's passes other than weight gradients. ``last``: per stage, its last pass."""

    def __init__(self, orders: PassOrders, paths: CriticalPaths) -> None:
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
            own = own[own // each != WGRAD_KIND]
            places[own] = np.arange(len(own))
        self.last = passes[firsts[1:] - 1].tolist()
        self.before, self.sources, self.places = before.tolist(), sources.tolist(), places.tolist()
