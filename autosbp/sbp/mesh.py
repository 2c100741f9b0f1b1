"""The device mesh: the cluster's devices as a product of axes, outermost (slowest network) first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Axis:
    """One mesh axis. ``level`` is the index of its cluster level, 0 = outermost."""

    name: str
    size: int
    level: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axes in order, outermost first; ranks are numbered row-major over them.

    ``level_counts`` holds the number of units of each cluster level. A group of axes thereby has a *shape*: how many
    units of each level it spans. The network model is keyed by this shape.
    """

    axes: tuple[Axis, ...]
    level_counts: tuple[int, ...]

    def __post_init__(self) -> None:
        assert prod(axis.size for axis in self.axes) == prod(self.level_counts)  # noqa: S101 - our own invariant

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.axes)

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """The rank's index along each axis."""
        index = []
        for axis in reversed(self.axes):
            index.append(rank % axis.size)
            rank //= axis.size
        return tuple(reversed(index))

    def rank(self, coordinate: Sequence[int]) -> int:
        """The inverse of ``coordinate``."""
        rank = 0
        for axis, index in zip(self.axes, coordinate, strict=True):
            rank = rank * axis.size + index
        return rank

    def device(self, rank: int) -> int:
        """Number of the device, and of its process, that is this rank."""
        return rank

    @property
    def split_counts(self) -> frozenset[int]:
        """Numbers of devices over which one or more of the axes can split a dim."""
        found = {1}
        for axis in self.axes:
            found |= {count * axis.size for count in found}
        return frozenset(found - {1})

    def group_size(self, axes: Sequence[int]) -> int:
        return prod(self.axes[axis].size for axis in axes)

    def group_shape(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Units of each level that a process group over ``axes`` spans; (2, 1) = 2 nodes, 1 device of each."""
        shape = [1] * len(self.level_counts)
        for axis in axes:
            shape[self.axes[axis].level] *= self.axes[axis].size
        return tuple(shape)

    def group_ranks(self, axes: Sequence[int], rank: int) -> list[int]:
        """Ranks of the process group over ``axes`` that contains ``rank``, in row-major order of those axes."""
        home = list(self.coordinate(rank))
        ranks = []
        for index in _row_major([self.axes[axis].size for axis in axes]):
            for axis, position in zip(axes, index, strict=True):
                home[axis] = position
            ranks.append(self.rank(home))
        return ranks

    def all_groups(self, axes: Sequence[int]) -> list[list[int]]:
        """Every process group over ``axes``, each once, ordered by its first rank."""
        firsts = self._ranks_along([axis for axis in range(self.ndim) if axis not in axes])
        behind = self._ranks_along(axes)
        return [[first + rank for rank in behind] for first in firsts]

    def _ranks_along(self, axes: Sequence[int]) -> list[int]:
        """Ranks whose index is 0 along all other axes, in row-major order of ``axes``."""
        ranks = [0]
        for axis in axes:
            step = prod(self.shape[axis + 1 :])
            ranks = [rank + step * index for rank in ranks for index in range(self.axes[axis].size)]
        return ranks

    def to_dict(self) -> dict[str, object]:
        return {
            "axes": [[axis.name, axis.size, axis.level] for axis in self.axes],
            "level_counts": list(self.level_counts),
        }


def _row_major(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not sizes:
        yield ()
        return
    for first in range(sizes[0]):
        for rest in _row_major(sizes[1:]):
            yield (first, *rest)
