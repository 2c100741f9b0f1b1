"""Time of one collective from alpha and beta, per group shape (AutoDDL section 3.1).

``bytes`` is the full (gathered, reduced or exchanged) message on one device: the input of reduce-scatter and
all-reduce, the output of all-gather, the buffer of all-to-all, the message of broadcast and P2P. Broadcast is counted
as a pipelined ring, as in nccl-tests.

    all_reduce                                    2 (p-1) alpha + 2 (p-1)/p bytes beta
    all_gather, reduce_scatter, all_to_all          (p-1) alpha +   (p-1)/p bytes beta
    broadcast                                       (p-1) alpha +           bytes beta
    p2p                                                   alpha +           bytes beta
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from math import log, prod

import numpy as np
from numpy.typing import NDArray

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import BETA_FLOOR_S_PER_BYTE, Calibration, CollectiveFit
from autosbp.costmodel.calibration import KINDS as KINDS

Floats = NDArray[np.float64]


def alpha_count(kind: str, num_ranks: int) -> float:
    """Number of latencies in one collective."""
    if kind == "p2p":
        return 1.0
    return float((num_ranks - 1) * (2 if kind == "all_reduce" else 1))


def beta_factor(kind: str, num_ranks: int) -> float:
    """Bytes that one device sends, per byte of the message; on average, where a parameter server sends more."""
    if kind in ("p2p", "broadcast"):
        return 1.0
    return (num_ranks - 1) / num_ranks * (2 if kind == "all_reduce" else 1)


def _outermost(group_shape: tuple[int, ...]) -> int | None:
    """The outermost level that a group crosses; None for a group of one."""
    return next((at for at, count in enumerate(group_shape) if count > 1), None)


def link_bytes_factor(kind: str, group_shape: tuple[int, ...]) -> float:
    """Bytes that one group sends over a unit's link, per ``beta_factor`` times the message.

    The link is on the outermost level that the group crosses.
    """
    at = _outermost(group_shape) or 0
    return _node_link_bytes_factor(kind, group_shape[at], prod(group_shape[at + 1 :]))


def _node_link_bytes_factor(kind: str, nodes: int, inside: int) -> float:
    """Bytes that one group sends over a node's link, per ``beta_factor`` times the message; see ``NetworkModel``."""
    if kind == "all_to_all":
        return inside * (nodes - 1) / nodes / beta_factor(kind, nodes * inside)
    return max(inside - 1.0, 1.0) if kind == "p2p" else 1.0


def level_of(group_shape: tuple[int, ...]) -> int:
    """Level of the slowest links that a group of this shape crosses, counted from the outermost.

    For a group of one, the index after the last level.
    """
    return next((at for at, count in enumerate(group_shape) if count > 1), len(group_shape))


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """Latency in seconds and seconds per byte of one collective over one group shape.

    Args:
        measured: whether the group shape itself was measured.
        knots: (bytes, beta) pairs: from that size on, further bytes cost that beta.
        waiting_s: extra seconds of a collective between ops.
        based_on: measured kind and group shape that an unmeasured one is derived from; None for the cluster's
            description.
    """

    alpha_s: float
    beta_s_per_byte: float
    measured: bool
    knots: tuple[tuple[int, float], ...] = ()
    waiting_s: float = 0.0
    based_on: tuple[str, tuple[int, ...]] | None = None

    def transfer_s(self, num_bytes: Floats) -> Floats:
        """Seconds for the bytes of a message, per unit of ``beta_factor``."""
        seconds: Floats = num_bytes * self.beta_s_per_byte
        before = self.beta_s_per_byte
        for start, beta in self.knots:
            seconds = seconds + np.maximum(num_bytes - start, 0.0) * (beta - before)
            before = beta
        return seconds


def fitted_s(fit: CollectiveFit, num_bytes: Floats) -> Floats:
    """Seconds of messages of these sizes by a fit; may be below 0 if plain least squares fitted it."""
    ranks = prod(fit.group_shape)
    curve = AlphaBeta(fit.alpha_s, fit.beta_s_per_byte, True, fit.knots)
    return alpha_count(fit.kind, ranks) * fit.alpha_s + beta_factor(fit.kind, ranks) * curve.transfer_s(num_bytes)


class NetworkModel:
    """Collective times on one cluster.

    A measured group shape uses its fit. An unmeasured one uses the fit of other groups across the same level (of the
    same kind and a similar number of ranks; else of another kind), or else the cluster's description. A fit of one
    group that ran alone gives a lower bound for all groups at once.

    By the description, a group inside one node uses the inner level. Otherwise the node's link is the bottleneck. With
    n nodes and m of the g devices of each node in a group (p = n m), g/m groups share the link, and each sends over it

        all_gather, reduce_scatter    (p-1)/p bytes      one stream of a ring through the nodes
        all_reduce                  2 (p-1)/p bytes
        broadcast                             bytes
        all_to_all                  m (n-1)/n bytes      each of m ranks sends to the p-m ranks of other nodes
        p2p                       max(m-1, 1) bytes      a permutation leaves one of m > 1 ranks in its node
    """

    def __init__(self, cluster: Cluster, calibration: Calibration | None = None) -> None:
        self.cluster = cluster
        self.correction = None if calibration is None else calibration.correction
        self._fits: dict[tuple[str, tuple[int, ...]], CollectiveFit] = {}
        self._single_group_fits: dict[tuple[str, tuple[int, ...]], CollectiveFit] = {}
        for fit in () if calibration is None else calibration.collectives:
            known = self._fits if fit.num_groups is None else self._single_group_fits
            known.setdefault((fit.kind, fit.group_shape), fit)
        self._cache: dict[tuple[str, tuple[int, ...]], AlphaBeta] = {}

    @cached_property
    def key(self) -> Hashable:
        """Key of everything that times depend on; the number of outermost units does not matter."""
        links = tuple((level.latency_s, level.bandwidth_bytes_per_s) for level in self.cluster.levels)
        fits = tuple(
            (*name, fit.num_groups, fit.alpha_s, fit.beta_s_per_byte, self._knots(fit), fit.waiting_s)
            for known in (self._fits, self._single_group_fits)
            for name, fit in known.items()
        )
        return links, tuple(level.count for level in self.cluster.levels[1:]), fits, self.correction

    def alpha_beta(self, kind: str, group_shape: tuple[int, ...]) -> AlphaBeta:
        if (kind, group_shape) not in self._cache:
            self._cache[kind, group_shape] = self._alpha_beta(kind, group_shape)
        return self._cache[kind, group_shape]

    def _alpha_beta(self, kind: str, group_shape: tuple[int, ...]) -> AlphaBeta:
        fit = self._fits.get((kind, group_shape))
        if fit is not None:
            return AlphaBeta(fit.alpha_s, fit.beta_s_per_byte, True, self._knots(fit), fit.waiting_s)
        at = _outermost(group_shape)
        if at is None:
            return AlphaBeta(0.0, 0.0, False)
        level, groups, streams = (
            self.cluster.levels[at],
            self._groups(group_shape),
            link_bytes_factor(kind, group_shape),
        )
        described = self._described_beta(kind, group_shape)
        near = self._nearest(kind, group_shape)
        if near is None:
            return AlphaBeta(level.latency_s, described, False)
        part = streams / link_bytes_factor(near.kind, near.group_shape)
        part *= groups / self._groups(near.group_shape) if near.num_groups is None else 1.0
        least = 0.0 if near.num_groups is None else described
        knots = tuple((size, max(part * beta, least)) for size, beta in self._knots(near))
        beta = max(part * near.beta_s_per_byte, least) if least else part * near.beta_s_per_byte
        return AlphaBeta(near.alpha_s, beta, False, knots, near.waiting_s, (near.kind, near.group_shape))

    def _described_beta(self, kind: str, group_shape: tuple[int, ...]) -> float:
        """Beta by the cluster's description."""
        level = self.cluster.levels[_outermost(group_shape) or 0]
        return self._groups(group_shape) * link_bytes_factor(kind, group_shape) / level.bandwidth_bytes_per_s

    def _knots(self, fit: CollectiveFit) -> tuple[tuple[int, float], ...]:
        """Knots of a fit, extended by the cluster's description if measured times did not grow with size.

        Such times say nothing about messages larger than the largest one measured.
        """
        if fit.last_beta_s_per_byte > BETA_FLOOR_S_PER_BYTE * (1 + 1e-9) or not fit.points:
            return fit.knots
        largest = max(point.num_bytes for point in fit.points)
        return (*fit.knots, (largest, self._described_beta(fit.kind, fit.group_shape)))

    def _groups(self, group_shape: tuple[int, ...]) -> float:
        """Number of groups of a shape that share the link of a unit of the outermost level that they cross."""
        inside = (_outermost(group_shape) or 0) + 1
        return prod(level.count for level in self.cluster.levels[inside:]) / prod(group_shape[inside:])

    def _nearest(self, kind: str, group_shape: tuple[int, ...]) -> CollectiveFit | None:
        """The most similar fit of groups across the same level."""
        at, ranks = _outermost(group_shape), prod(group_shape)
        found = [
            fit
            for fit in (*self._fits.values(), *self._single_group_fits.values())
            if _outermost(fit.group_shape) == at
        ]

        def distance(fit: CollectiveFit) -> tuple[bool, bool, float]:
            return fit.kind != kind, fit.num_groups is not None, abs(log(prod(fit.group_shape) / ranks))

        return min(found, key=distance, default=None)

    def time_s(self, kind: str, num_bytes: float, group_shape: tuple[int, ...]) -> float:
        """Seconds of one collective over a group of this shape; 0 for a group of one, and never below 0.

        A plain least-squares fit may have a negative alpha, which would make small messages cost less than nothing.
        """
        return float(self.times_s(kind, np.array([num_bytes], dtype=np.float64), group_shape)[0])

    def times_s(self, kind: str, num_bytes: Floats, group_shape: tuple[int, ...], between_ops: bool = True) -> Floats:
        """``time_s`` of many messages at once.

        ``between_ops``: ranks come to the collective from computation and wait for it; otherwise it overlaps
        computation.
        """
        num_ranks = prod(group_shape)
        if num_ranks <= 1:
            return np.zeros(num_bytes.shape)
        fit = self.alpha_beta(kind, group_shape)
        latency_s = alpha_count(kind, num_ranks) * fit.alpha_s
        waiting_s = fit.waiting_s if between_ops else 0.0
        seconds = waiting_s + np.maximum(0.0, latency_s + beta_factor(kind, num_ranks) * fit.transfer_s(num_bytes))
        if self.correction is None:
            return seconds
        return self.correction.network * seconds + (self.correction.waiting_s if between_ops else 0.0)

    def shared_times_s(self, kind: str, num_bytes: Floats, message: int, group_shape: tuple[int, ...]) -> Floats:
        """Seconds of many tensors that share messages of ``message`` bytes.

        Each tensor pays its share of one message; a larger tensor has its own. This is a sum over tensors, as search
        needs it; exact if messages are full.
        """
        whole = np.maximum(num_bytes, float(max(message, 1)))
        return self.times_s(kind, whole, group_shape, between_ops=False) * (num_bytes / whole)
