"""Convert between an emulated cluster's shape and its cluster specification."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.errors import InputError
from autosbp.utils.json_io import check_integer

PRESET = "emulated"
PRESET_RATE_MBIT = 200.0
PAYLOAD = 1448 / 1514  # payload of a full Ethernet frame: without headers of Ethernet, IP and TCP with time stamps
MAX_NODES, MAX_RANKS_PER_NODE, MAX_RANKS = 32, 32, 64
MAX_RATE_MBIT, MAX_DELAY_MS = 1000.0, 1000.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Number of nodes, ranks per node, and their links: ``rate_mbit`` in each direction, ``delay_ms`` between nodes.

    Links are realistic up to 500 Mbit/s; at 1 Gbit/s a small machine spends more time on them than on the ranks.
    """

    nodes: int = 2
    ranks_per_node: int = 2
    rate_mbit: float = PRESET_RATE_MBIT
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        check_integer("nodes", self.nodes, 1, MAX_NODES)
        check_integer("ranks_per_node", self.ranks_per_node, 1, MAX_RANKS_PER_NODE)
        check_integer("nodes * ranks_per_node", self.num_ranks, 1, MAX_RANKS)
        if not 1 <= self.rate_mbit <= MAX_RATE_MBIT:
            raise InputError("rate_mbit", self.rate_mbit, f"expected 1 to {MAX_RATE_MBIT:g} Mbit/s")
        if not 0 <= self.delay_ms <= MAX_DELAY_MS:
            raise InputError("delay_ms", self.delay_ms, f"expected 0 to {MAX_DELAY_MS:g} ms")

    @property
    def num_ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    def spec(self) -> Cluster:
        """The cluster specification for the planner: the preset ``emulated`` with this rate and delay."""
        preset = load_cluster(f"{PRESET}:{self.nodes}x{self.ranks_per_node}")
        links, inside = preset.levels
        latency_s = links.latency_s + self.delay_ms * 1e-3
        links = replace(links, latency_s=latency_s, bandwidth_bytes_per_s=self.rate_mbit * 1e6 / 8 * PAYLOAD)
        name = preset.name
        if self.rate_mbit != PRESET_RATE_MBIT:
            name += f" at {self.rate_mbit:g} Mbit/s"
        if self.delay_ms:
            name += f", {self.delay_ms:g} ms"
        return replace(preset, name=name, levels=(links, inside))

    @staticmethod
    def of(cluster: Cluster) -> Shape:
        """The shape that a cluster specification describes: its outer level's bandwidth as rate, its latency as delay.

        Raises ``InputError`` for a cluster other than two levels of CPUs within the limits.
        """
        if len(cluster.levels) != 2 or cluster.device.kind != "cpu":
            raise InputError("cluster", cluster.name, f"expected two levels of CPU ranks, such as {PRESET}:2x2")
        links, inside = cluster.levels
        base_s = load_cluster(PRESET).levels[0].latency_s
        return Shape(
            links.count,
            inside.count,
            round(links.bandwidth_bytes_per_s * 8 / 1e6 / PAYLOAD, 3),
            round(max(0.0, links.latency_s - base_s) * 1e3, 3),
        )
