"""Meshes over some devices of a cluster: pipeline stages, and programs that name their devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from autosbp.errors import InputError
from autosbp.sbp.mesh import Axis, Mesh


@dataclass(frozen=True, slots=True)
class PlacedMesh(Mesh):
    """A mesh over named devices: ``devices[rank]`` is the cluster's device, numbered row-major over its levels.

    ``cluster_counts`` are the units of each cluster level. Two placed meshes may share devices.
    """

    devices: tuple[int, ...]
    cluster_counts: tuple[int, ...]

    def device(self, rank: int) -> int:
        return self.devices[rank]

    def rank_of(self, device: int) -> int | None:
        """The rank of a device on this mesh, or None."""
        return self.devices.index(device) if device in self.devices else None

    def group_shape(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Units of each cluster level that the widest group over ``axes`` spans."""
        return max(self._span([self.devices[rank] for rank in ranks]) for ranks in self.all_groups(axes))

    def _span(self, devices: Sequence[int]) -> tuple[int, ...]:
        shape, above = [], 1
        for level in range(len(self.cluster_counts)):
            units = len({unit(device, level, self.cluster_counts) for device in devices})
            shape.append(-(-units // above))
            above = units
        return tuple(shape)


def placed_mesh(devices: Sequence[int], sizes: Sequence[int], cluster_counts: tuple[int, ...]) -> PlacedMesh:
    """A mesh with axes of these sizes over devices in ascending order, so that ranks of groups ascend too.

    Raises:
        InputError: devices that are not ascending or not in the cluster, or sizes that do not multiply to their number.
    """
    if not devices or any(one >= two for one, two in zip(devices, devices[1:], strict=False)):
        raise InputError("devices", list(devices), "expected different devices in ascending order")
    if devices[0] < 0 or devices[-1] >= prod(cluster_counts):
        raise InputError("devices", list(devices), f"expected devices 0 to {prod(cluster_counts) - 1}")
    if any(size < 1 for size in sizes) or prod(sizes) != len(devices):
        raise InputError("sizes", list(sizes), f"expected axes of {len(devices)} devices in all")
    axes = tuple(Axis(f"axis{at}", size, 0) for at, size in enumerate(sizes))
    return PlacedMesh(axes, (len(devices),), tuple(devices), cluster_counts)


def unit(device: int, level: int, cluster_counts: tuple[int, ...]) -> int:
    """Index of the unit of a cluster level, such as the node, that contains a device."""
    return device // prod(cluster_counts[level + 1 :])


def units_of(devices: NDArray[np.int64], level: int, cluster_counts: tuple[int, ...]) -> NDArray[np.int64]:
    """``unit`` of many devices."""
    return devices // prod(cluster_counts[level + 1 :])


def link_level(one: int, two: int, cluster_counts: tuple[int, ...]) -> int:
    """Level of the link between two different devices: the outermost one on which their units differ."""
    return next(level for level in range(len(cluster_counts))
                if unit(one, level, cluster_counts) != unit(two, level, cluster_counts))  # fmt: skip
