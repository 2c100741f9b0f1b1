"""Meshes over some devices of a cluster: the device sets of pipeline stages, and of programs that name their devices."""

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
    """``devices[rank]`` is the cluster's device, numbered row-major over its levels, that is this rank of the mesh.

    ``cluster_counts`` are the units of each cluster level. Two placed meshes may share devices.
    """

    devices: tuple[int, ...]
    cluster_counts: tuple[int, ...]

    def device(self, rank: int) -> int:
        return self.devices[rank]

    def rank_of(self, device: int) -> int | None:
        """The rank that a device is, or None."""
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
    """A mesh with axes of these sizes over devices in ascending order, so that ranks of groups ascend, too."""
    if not devices or any(one >= two for one, two in zip(devices, devices[1:], strict=False)):
        raise InputError("devices", list(devices), "different devices in ascending order are expected")
    if devices[0] < 0 or devices[-1] >= prod(cluster_counts):
        raise InputError("devices", list(devices), f"devices 0 to {prod(cluster_counts) - 1} are expected")
    if any(size < 1 for size in sizes) or prod(sizes) != len(devices):
        raise InputError("sizes", list(sizes), f"axes of {len(devices)} devices in all are expected")
    axes = tuple(Axis(f"axis{at}", size, 0) for at, size in enumerate(sizes))
    return PlacedMesh(axes, (len(devices),), tuple(devices), cluster_counts)


def unit(device: int, level: int, cluster_counts: tuple[int, ...]) -> int:
    """Which unit of a cluster level, such as which node, a device lies in."""
    return device // prod(cluster_counts[level + 1 :])


def units_of(devices: NDArray[np.int64], level: int, cluster_counts: tuple[int, ...]) -> NDArray[np.int64]:
    """``unit`` of many devices."""
    return devices // prod(cluster_counts[level + 1 :])


def link_level(one: int, two: int, cluster_counts: tuple[int, ...]) -> int:
    """The level whose links join two different devices: the outermost one in which they lie in different units."""
    return next(level for level in range(len(cluster_counts))
                if unit(one, level, cluster_counts) != unit(two, level, cluster_counts))  # fmt: skip
