"""Time of one collective from alpha and beta, per group shape (DESIGN section 7; AutoDDL section 3.1).

``bytes`` is the full (gathered, reduced or exchanged) message on one device: the input of reduce-scatter and
all-reduce, the output of all-gather, the buffer of all-to-all, the message of broadcast and P2P. Broadcast is counted
as a pipelined ring, as nccl-tests does.

    all_reduce                                    2 (p-1) alpha + 2 (p-1)/p bytes beta
    all_gather, reduce_scatter, all_to_all          (p-1) alpha +   (p-1)/p bytes beta
    broadcast                                       (p-1) alpha +           bytes beta
    p2p                                                   alpha +           bytes beta
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import KINDS as KINDS
from autosbp.costmodel.calibration import Calibration, CollectiveFit

Floats = NDArray[np.float64]


def alpha_count(kind: str, num_ranks: int) -> float:
    """How many latencies one collective pays."""
    if kind == "p2p":
        return 1.0
    return float((num_ranks - 1) * (2 if kind == "all_reduce" else 1))


def beta_factor(kind: str, num_ranks: int) -> float:
    """Bytes that one device sends, per byte of the message."""
    if kind in ("p2p", "broadcast"):
        return 1.0
    return (num_ranks - 1) / num_ranks * (2 if kind == "all_reduce" else 1)


def _streams(kind: str, nodes: int, inside: int) -> float:
    """Bytes that one group sends over a node's link, per ``beta_factor`` times the message; see ``NetworkModel``."""
    if kind == "all_to_all":
        return inside * (nodes - 1) / nodes / beta_factor(kind, nodes * inside)
    return max(inside - 1.0, 1.0) if kind == "p2p" else 1.0


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """Latency in seconds and seconds per byte of one collective over one group shape; ``measured`` tells its source.

    ``knots`` are (bytes, beta) pairs: from that size on, further bytes cost that beta.
    """

    alpha_s: float
    beta_s_per_byte: float
    measured: bool
    knots: tuple[tuple[int, float], ...] = ()
    waiting_s: float = 0.0

    def transfer_s(self, num_bytes: Floats) -> Floats:
        """Seconds that the bytes of a message take, per unit of ``beta_factor``."""
        seconds: Floats = num_bytes * self.beta_s_per_byte
        before = self.beta_s_per_byte
        for start, beta in self.knots:
            seconds = seconds + np.maximum(num_bytes - start, 0.0) * (beta - before)
            before = beta
        return seconds


class NetworkModel:
    """Collective times on one cluster: fits of a calibration where the group shape was measured, else the levels.

    From the levels: a group inside one node uses the inner level. Otherwise the node's link is the bottleneck. With n
    nodes and m of the g devices of each node in a group (p = n m), g/m groups share the link, and each sends over it

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
        for fit in () if calibration is None else calibration.collectives:
            if fit.num_groups is None:
                self._fits.setdefault((fit.kind, fit.group_shape), fit)
        self._known: dict[tuple[str, tuple[int, ...]], AlphaBeta] = {}

    @cached_property
    def key(self) -> Hashable:
        """All that times depend on; how many of the outermost units there are is no part of it."""
        links = tuple((level.latency_s, level.bandwidth_bytes_per_s) for level in self.cluster.levels)
        fits = tuple(
            (*name, fit.alpha_s, fit.beta_s_per_byte, fit.knots, fit.waiting_s) for name, fit in self._fits.items()
        )
        return links, tuple(level.count for level in self.cluster.levels[1:]), fits, self.correction

    def alpha_beta(self, kind: str, group_shape: tuple[int, ...]) -> AlphaBeta:
        if (kind, group_shape) not in self._known:
            self._known[kind, group_shape] = self._alpha_beta(kind, group_shape)
        return self._known[kind, group_shape]

    def _alpha_beta(self, kind: str, group_shape: tuple[int, ...]) -> AlphaBeta:
        fit = self._fits.get((kind, group_shape))
        if fit is not None:
            return AlphaBeta(fit.alpha_s, fit.beta_s_per_byte, True, fit.knots, fit.waiting_s)
        levels = self.cluster.levels
        for index, count in enumerate(group_shape):
            if count > 1:
                inside_group = prod(group_shape[index + 1 :])
                inside_all = prod(level.count for level in levels[index + 1 :])
                sharing = inside_all / inside_group * _streams(kind, count, inside_group)
                return AlphaBeta(levels[index].latency_s, sharing / levels[index].bandwidth_bytes_per_s, False)
        return AlphaBeta(0.0, 0.0, False)

    def time_s(self, kind: str, num_bytes: float, group_shape: tuple[int, ...]) -> float:
        """Seconds of one collective over a group of this shape; 0 for a group of one, and never below 0.

        A plain least-squares fit may have a negative alpha, which would make small messages cost less than nothing.
        """
        return float(self.times_s(kind, np.array([num_bytes], dtype=np.float64), group_shape)[0])

    def times_s(self, kind: str, num_bytes: Floats, group_shape: tuple[int, ...], between_ops: bool = True) -> Floats:
        """``time_s`` of many messages at once. ``between_ops`` are those that ranks come to from computation, and wait
        for; others are under way beside it."""
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
        """Seconds of many tensors that travel with others in messages of ``message`` bytes: each pays its share of one,
        a larger tensor a message of its own. A sum over tensors, as search needs it; exact where messages are full."""
        whole = np.maximum(num_bytes, float(max(message, 1)))
        return self.times_s(kind, whole, group_shape, between_ops=False) * (num_bytes / whole)
