"""Hash-consed cost tables: the same operands combined in the same way are computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from threading import Thread

import numpy as np

from autosbp.search._base import Costs
from autosbp.search.solvers.minplus_backend import load_kernels

# Entries of a temporary: 512 KiB, so that the sum is still in cache when its minimum is taken.
CHUNK_ENTRIES = 1 << 16
MAX_TEMPORARY_ENTRIES = 1 << 23  # 64 MiB
MIN_ADDITIONS_FOR_THREADS = 4e6  # additions from which a second thread takes half of them
MIN_COMPILED_ADDITIONS_FOR_THREADS = 2e7  # the same for compiled loops, which are faster
MIN_ADDITIONS_FOR_COMPILED = 1.5e4  # additions from which a compiled loop is worth its call
SAMPLES = 64  # entries that distinguish most arrays without a full comparison

Operand = tuple[int, tuple[int, ...]]  # table id; which local axis each of its dims is


class CostTables:
    """Arrays by identity, and cached results of every min-plus elimination on them.

    Args:
        check: called between chunks of work; may raise to abandon it.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self.arrays: list[Costs] = []
        self.distinct_products = 0
        self.operations = 0
        self._ids: dict[int, int] = {}
        self._memo: dict[tuple[Operand, ...], int] = {}
        self._check = check

    def intern(self, array: Costs) -> int:
        """Id of an array; the same object has the same id."""
        known = self._ids.get(id(array))
        if known is None:
            known = self._ids[id(array)] = len(self.arrays)
            self.arrays.append(array)  # keeps it alive, so that its id stays unique
        return known

    def eliminate(self, operands: Sequence[Operand], sizes: tuple[int, ...]) -> int:
        """Id of ``min over the last local axis of the sum of the operands``, a table over the other axes in order.

        ``sizes`` are the lengths of the local axes. Every axis but the last may be missing from the operands."""
        key = tuple(sorted(operands))
        known = self._memo.get(key)
        if known is None:
            rank = len(sizes)
            arrays = [
                broadcast_to_axes(self.arrays[table], tuple((axis + 1) % rank for axis in axes), rank)
                for table, axes in key
            ]
            known = self._memo[key] = self.intern(min_of_sum(arrays, (sizes[-1], *sizes[:-1]), self._check))
            self.distinct_products += 1
            self.operations += int(np.prod(sizes, dtype=np.float64))
        return known


def broadcast_to_axes(array: Costs, axes: tuple[int, ...], rank: int) -> Costs:
    """The array with its dims in the order of the axes, and dims of 1 for missing axes."""
    shape = [1] * rank
    for dim, axis in enumerate(axes):
        shape[axis] = array.shape[dim]
    order = sorted(range(len(axes)), key=axes.__getitem__)
    return np.ascontiguousarray(array.transpose(order)).reshape(shape)


def min_of_sum(arrays: Sequence[Costs], sizes: tuple[int, ...], check: Callable[[], None]) -> Costs:
    """``min`` over the first dim of the sum of mutually broadcastable arrays; shape ``sizes[1:]``.

    It reduces the first dim because minima of whole rows are several times faster than those of many short ones.
    Temporaries hold at most ``CHUNK_ENTRIES`` entries, or one line of the first dim. Sums of some of the operands,
    computed once beforehand, hold at most ``MAX_TEMPORARY_ENTRIES``, or as many as the largest operand."""
    by_shape: dict[tuple[int, ...], Costs] = {}
    for array in arrays:
        by_shape[array.shape] = by_shape[array.shape] + array if array.shape in by_shape else array
    # Operands that fit inside another are added to it, and those without the last result dim to one another: then the
    # full-size work is one addition and one minimum.
    merged: list[Costs] = []
    for array in sorted(by_shape.values(), key=lambda a: a.size, reverse=True):
        host = next((k for k, big in enumerate(merged) if _fits(array, big)), None)
        if host is None:
            merged.append(array)
        else:
            merged[host] = merged[host] + array
    outer = [array for array in merged if len(sizes) > 1 and array.shape[-1] == 1]
    while len(outer) > 1 and np.broadcast(outer[0], outer[1]).size <= MAX_TEMPORARY_ENTRIES:
        joined = outer[0] + outer[1]
        merged = [array for array in merged if array is not outer[0] and array is not outer[1]] + [joined]
        outer = [joined, *outer[2:]]
    additions = float(np.prod(sizes, dtype=np.float64))
    if len(merged) == 2 and additions >= MIN_ADDITIONS_FOR_COMPILED:
        loops = load_kernels(additions)
        if loops is not None:
            return _min_of_sum_compiled(loops.least_sums, merged[0], merged[1], sizes, check)
    out = np.empty(sizes[1:])
    if len(sizes) > 1 and sizes[1] > 1 and additions >= MIN_ADDITIONS_FOR_THREADS:
        _fill_two_threads(out, merged, sizes, check)
    else:
        _fill(out, merged, sizes, check)
    return out


def _min_of_sum_compiled(
    least_sums: Callable[[Costs, Costs, Costs, int, int], None],
    one: Costs,
    two: Costs,
    sizes: tuple[int, ...],
    check: Callable[[], None],
) -> Costs:
    """Min-plus of two arrays by a compiled loop over matrices, one for each index of the dims that both have."""
    if one.shape[-1] > 1 and two.shape[-1] == 1:
        one, two = two, one  # rows run over the last dim
    dims = range(1, len(sizes))
    both = [dim for dim in dims if one.shape[dim] > 1 and two.shape[dim] > 1]
    own, other = ([dim for dim in dims if array.shape[dim] > 1 and dim not in both] for array in (one, two))
    order = (*both, *own, *other)
    shapes = [[sizes[dim] for dim in each] for each in (both, own, other)]
    count, rows, columns = (math.prod(shape) for shape in shapes)
    left, right = _matrices(one, both, own), _matrices(two, both, other)
    found = np.empty((count, rows, columns))
    half = rows // 2 if float(count * rows * columns) * sizes[0] >= MIN_COMPILED_ADDITIONS_FOR_THREADS else 0
    check()
    if half:
        thread = Thread(target=least_sums, args=(left, right, found, 0, half))
        thread.start()
    least_sums(left, right, found, half, rows)
    if half:
        thread.join()
    single = [dim for dim in dims if sizes[dim] == 1]
    turned = found.reshape([*(size for shape in shapes for size in shape), *(1 for _ in single)])
    return np.ascontiguousarray(turned.transpose(np.argsort([*order, *single])))


def _matrices(array: Costs, both: Sequence[int], own: Sequence[int]) -> Costs:
    """The array reshaped to (indices of ``both``, first dim, indices of its ``own``)."""
    single = [dim for dim in range(1, array.ndim) if dim not in both and dim not in own]
    turned = array.transpose([*both, 0, *own, *single])
    count = math.prod(array.shape[dim] for dim in both)
    return np.ascontiguousarray(turned).reshape(count, array.shape[0], -1)


def _fill_two_threads(out: Costs, arrays: Sequence[Costs], sizes: tuple[int, ...], check: Callable[[], None]) -> None:
    """``_fill`` with the second half in another thread: NumPy's loops run in parallel."""
    half = sizes[1] // 2
    one, two = (_part(arrays, part) for part in (slice(half), slice(half, None)))
    other = Thread(target=_fill, args=(out[half:], two, (sizes[0], sizes[1] - half, *sizes[2:]), lambda: None))
    other.start()
    try:
        _fill(out[:half], one, (sizes[0], half, *sizes[2:]), check)
    finally:
        other.join()


def _part(arrays: Sequence[Costs], part: slice) -> list[Costs]:
    """The slice ``part`` of the first result dim."""
    return [array[:, part] if array.shape[1] > 1 else array for array in arrays]


def _fits(small: Costs, big: Costs) -> bool:
    return all(s in (1, b) for s, b in zip(small.shape, big.shape, strict=True))


def _fill(out: Costs, arrays: Sequence[Costs], sizes: tuple[int, ...], check: Callable[[], None]) -> None:
    """Write the minima into ``out``, splitting its leading dim until the temporary is small."""
    entries = int(np.prod(sizes, dtype=np.float64))
    if len(sizes) == 1 or entries <= CHUNK_ENTRIES:
        np.minimum.reduce(_sum(arrays), axis=0, out=out)
        return
    check()
    inner = entries // sizes[1]
    if len(sizes) > 2 and inner > CHUNK_ENTRIES:
        for i in range(sizes[1]):
            _fill(out[i], [a[:, i if a.shape[1] > 1 else 0] for a in arrays], (sizes[0], *sizes[2:]), check)
        return
    step = max(1, CHUNK_ENTRIES // inner)
    buffer = np.empty((sizes[0], step, *sizes[2:])) if len(arrays) > 1 else None
    for first in range(0, sizes[1], step):
        last = min(first + step, sizes[1])
        parts = _part(arrays, slice(first, last))
        if buffer is None:
            np.minimum.reduce(parts[0], axis=0, out=out[first:last])
            continue
        total = buffer[:, : last - first]
        np.add(parts[0], parts[1], out=total)
        for part in parts[2:]:
            total += part
        np.minimum.reduce(total, axis=0, out=out[first:last])


def _sum(arrays: Sequence[Costs]) -> Costs:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total


class ArrayInterner:
    """Maps arrays of equal content to one object, so that identity stands for equality afterwards."""

    def __init__(self) -> None:
        self._by_id: dict[int, Costs] = {}
        self._alike: dict[tuple[object, ...], list[Costs]] = {}
        self._alive: list[Costs] = []

    def __call__(self, array: Costs) -> Costs:
        """The first array seen with this content, as contiguous float64."""
        known = self._by_id.get(id(array))
        if known is None:
            solid = np.ascontiguousarray(array, dtype=np.float64) + 0.0  # -0.0 becomes 0.0
            flat = solid.reshape(-1)
            few = flat[:: 1 + len(flat) // SAMPLES]
            alike = self._alike.setdefault((solid.shape, few.tobytes(), float(flat.sum())), [])
            known = next((other for other in alike if np.array_equal(other, solid)), None)
            if known is None:
                known = solid
                alike.append(solid)
            self._by_id[id(array)] = known
            self._alive.append(array)
        return known
