"""Properties of many layouts of a tensor at once, cached."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autosbp.sbp.layout import B, Sbp
from autosbp.sbp.mesh import Mesh

Rows = NDArray[np.int64]


class LayoutTable:
    """The layouts ``states[rows[i, axis]]``; rows must not change while this is in use."""

    def __init__(self, mesh: Mesh, rows: Rows, states: Sequence[Sbp]) -> None:
        self.mesh, self.rows, self.states = mesh, rows, tuple(states)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal only for equal layouts."""
        return hashlib.blake2b(self.rows.tobytes(), digest_size=16).digest(), self.rows.shape, self.states

    @cached_property
    def parts(self) -> NDArray[np.float64]:
        """[layout] number of parts into which each splits the tensor."""
        return split_product(self.mesh, self.rows, [sbp.is_split for sbp in self.states])

    @cached_property
    def replicated_groups(self) -> tuple[tuple[tuple[int, ...], NDArray[np.bool_]], ...]:
        """Group shapes over the axes on which layouts are B, with a mask of those layouts."""
        return tuple(self._over_b())

    def _over_b(self) -> Iterator[tuple[tuple[int, ...], NDArray[np.bool_]]]:
        masks = np.array([sbp == B for sbp in self.states], dtype=bool)[self.rows] @ (1 << np.arange(self.mesh.ndim))
        for mask in range(1 << self.mesh.ndim):
            chosen = masks == mask
            if chosen.any():
                yield self.mesh.group_shape([axis for axis in range(self.mesh.ndim) if mask >> axis & 1]), chosen


class LayoutTables:
    """Cache of ``LayoutTable`` by arrays of rows, which it keeps alive."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._known: dict[tuple[int, tuple[Sbp, ...]], LayoutTable] = {}
        self._single: dict[int, Rows] = {}

    def of(self, rows: Rows, states: Sequence[Sbp]) -> LayoutTable:
        key = id(rows), tuple(states)
        if key not in self._known:
            self._known[key] = LayoutTable(
                self.mesh, rows, states
            )  # keeps its rows alive, so that no other array gets their id
        return self._known[key]

    def single(self, layout: Sequence[Sbp]) -> LayoutTable:
        """One layout, by its state on each axis."""
        count = len(layout)
        if count not in self._single:
            self._single[count] = np.arange(count, dtype=np.int64)[None, :]
        return self.of(self._single[count], layout)


def split_product(mesh: Mesh, rows: Rows, splits: Sequence[bool]) -> NDArray[np.float64]:
    """Per row, the product of the sizes of the axes whose option splits."""
    sizes = np.array([axis.size for axis in mesh.axes], dtype=np.float64)
    product: NDArray[np.float64] = np.where(np.array(splits, dtype=bool)[rows], sizes, 1.0).prod(axis=1)
    return product
