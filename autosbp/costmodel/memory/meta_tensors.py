"""Meta tensors: shapes, strides and storages without data; a meter counts their bytes while something holds them.

A storage lives as long as its Python object, as in torch. A dry run with the same structure as the real program
therefore frees the same tensors at the same time. This needs reference counting (CPython), as torch's own lifetimes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

Shape = tuple[int, ...]

TEMPORARY, SAVED_ACTIVATIONS = "temporaries", "activations"
"""Tensors held only by the running op or by following ops of the program; and tensors saved by autograd."""
PARAMETERS, GRADIENTS, GATHERED, DATA = "parameters", "gradients", "gathered", "data"
PREALLOCATED = (PARAMETERS, DATA)
"""Purposes of tensors that exist before a step."""


class MemoryMeter:
    """Live bytes by purpose, and their breakdown at the peak of the total."""

    __slots__ = ("at_peak", "by_purpose", "kept", "kept_peak", "live", "peak")

    def __init__(self) -> None:
        self.live = self.peak = self.kept = self.kept_peak = 0
        self.by_purpose: dict[str, int] = {TEMPORARY: 0, SAVED_ACTIVATIONS: 0}
        self.at_peak: dict[str, int] = {}

    def add(self, purpose: str, num_bytes: int) -> None:
        self.by_purpose[purpose] = self.by_purpose.get(purpose, 0) + num_bytes
        self.live += num_bytes
        if self.live > self.peak:
            self.peak = self.live
            self.at_peak = dict(self.by_purpose)

    def drop(self, purpose: str, num_bytes: int) -> None:
        self.by_purpose[purpose] -= num_bytes
        self.live -= num_bytes

    def move(self, num_bytes: int, purpose: str, to: str) -> None:
        self.by_purpose[purpose] -= num_bytes
        self.by_purpose[to] = self.by_purpose.get(to, 0) + num_bytes

    def keep(self, num_bytes: int) -> None:
        """Change the bytes saved by autograd; negative to release."""
        self.kept += num_bytes
        self.kept_peak = max(self.kept_peak, self.kept)


class MetaStorage:
    """Bytes that count while this object lives.

    ``saved`` is the number of autograd nodes that save it, ``pending`` the number of gradient sums that hold it;
    ``lent`` marks a copy that autograd does not save, because backward gathers it again.
    """

    __slots__ = ("lent", "meter", "num_bytes", "pending", "purpose", "saved")

    def __init__(self, meter: MemoryMeter, num_bytes: int, purpose: str) -> None:
        self.meter, self.num_bytes, self.purpose = meter, num_bytes, purpose
        self.saved = self.pending = 0
        self.lent = False
        meter.add(purpose, num_bytes)

    def __del__(self) -> None:
        self.meter.drop(self.purpose, self.num_bytes)

    def save(self) -> None:
        """Register one more autograd node that saves this."""
        self.saved += 1
        if self.saved == 1 and self.purpose not in PREALLOCATED:
            self.meter.keep(self.num_bytes)
            if self.purpose == TEMPORARY:
                self.set_purpose(SAVED_ACTIVATIONS)

    def release(self) -> None:
        """Unregister one autograd node that saves this."""
        self.saved -= 1
        if self.saved == 0 and self.purpose not in PREALLOCATED:
            self.meter.keep(-self.num_bytes)
            if self.purpose == SAVED_ACTIVATIONS:
                self.set_purpose(TEMPORARY)

    def set_purpose(self, purpose: str) -> None:
        """Count under another purpose from here on."""
        if purpose != self.purpose:
            self.meter.move(self.num_bytes, self.purpose, purpose)
            self.purpose = purpose


class MetaTensor:
    """A tensor over a storage.

    ``node`` is the autograd node that produced it; None if no gradient flows. ``is_view`` marks a view of another
    tensor, which keeps that tensor alive and prevents in-place accumulation, as in torch.
    """

    __slots__ = ("index", "is_view", "node", "shape", "storage", "strides", "width")

    def __init__(self, storage: MetaStorage, shape: Shape, strides: Shape, width: int) -> None:
        self.storage, self.shape, self.strides, self.width = storage, shape, strides, width
        self.node: object = None
        self.index = 0
        self.is_view = False

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.width

    @property
    def is_contiguous(self) -> bool:
        return self.strides == contiguous(self.shape) or _compact(self.shape, self.strides)

    def view(self, shape: Shape, strides: Shape) -> MetaTensor:
        other = MetaTensor(self.storage, shape, strides, self.width)
        other.is_view = True
        return other


@lru_cache(maxsize=65536)
def contiguous(shape: Shape) -> Shape:
    """Row-major strides."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@lru_cache(maxsize=65536)
def _compact(shape: Shape, strides: Shape) -> bool:
    """Whether strides are row-major, ignoring dims of size 1."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


@lru_cache(maxsize=65536)
def is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether elements fill memory without gaps or overlaps, in any order of dims.

    As torch's ``is_non_overlapping_and_dense``.
    """
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != expected:
                return size == 0
            expected *= size
    return True


@lru_cache(maxsize=65536)
def view_strides(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """Strides of a view in another shape, or None if a copy is needed (torch's ``computeStride``)."""
    if prod(shape) == 0:
        return contiguous(target)
    found = [0] * len(target)
    at = len(target) - 1
    base = strides[-1] if strides else 1
    held = taken = 1
    for dim in range(len(shape) - 1, -1, -1):
        held *= shape[dim]
        if dim == 0 or (shape[dim - 1] != 1 and strides[dim - 1] != held * base):
            while at >= 0 and (taken < held or target[at] == 1):
                found[at] = taken * base
                taken *= target[at]
                at -= 1
            if taken != held:
                return None
            if dim > 0:
                base = strides[dim - 1]
                held = taken = 1
    while at >= 0:
        found[at] = taken * base
        at -= 1
    return tuple(found)


@lru_cache(maxsize=65536)
def dense_strides_like(shape: Shape, strides: Shape) -> Shape:
    """Dense strides with the same memory order of dims, as an elementwise op gives its result."""
    if strides == contiguous(shape) or any(
        not stride and size > 1 for size, stride in zip(shape, strides, strict=True)
    ):
        return contiguous(shape)
    order = sorted(range(len(shape)), key=lambda dim: -strides[dim])
    found, step = [0] * len(shape), 1
    for dim in reversed(order):
        found[dim] = step
        step *= max(shape[dim], 1)
    return tuple(found)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The broadcast shape of several shapes."""
    rank = max((len(shape) for shape in shapes), default=0)
    full = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*full, strict=True))
