"""Partition of a cluster's devices into pipeline stages: equal parts of neighbours."""

from __future__ import annotations

from autosbp.cluster.spec import Cluster, prime_factors
from autosbp.sbp.mesh import Axis, Mesh

MAX_STAGES = 128


def stage_meshes(cluster: Cluster, most: int = MAX_STAGES) -> list[tuple[int, Mesh]]:
    """Pairs of a number of stages and the finest mesh of one stage, fewest stages first.

    First all devices in one stage, then parts of the outer level, then one of its units per stage, then parts of a
    unit. At most ``most`` stages.
    """
    found = []
    counts = [level.count for level in cluster.levels]
    for stages in range(1, min(most, cluster.num_devices) + 1):
        part = _part(counts, stages)
        if part is not None:
            axes = tuple(
                Axis(f"{level.name}{position}", prime, index)
                for index, (level, count) in enumerate(zip(cluster.levels, part, strict=True))
                for position, prime in enumerate(prime_factors(count))
            )
            found.append((stages, Mesh(axes, tuple(part))))
    return found


def _part(counts: list[int], stages: int) -> list[int] | None:
    """Units of each level in one of ``stages`` equal parts of neighbours; None if there is no such part."""
    part = list(counts)
    for level, count in enumerate(counts):
        if count % stages == 0:
            part[level] = count // stages
            return part
        if stages % count:
            return None
        part[level], stages = 1, stages // count
    return part if stages == 1 else None
