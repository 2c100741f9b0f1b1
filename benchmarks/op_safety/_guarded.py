"""Tensors between inaccessible guard pages: an out-of-bounds access kills the process."""

from __future__ import annotations

import ctypes
import mmap

import torch

GUARD_BYTES = 2**33
"""Bytes of guard before and after a tensor: wrong indices of up to 2^30 elements of eight bytes fall into it."""
_NORESERVE = 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Guard:
    """Owns the memory of its tensors, which are invalid after ``close``."""

    def __init__(self) -> None:
        self._areas: list[tuple[int, int]] = []

    def tensor(self, like: torch.Tensor, at_end: bool) -> torch.Tensor:
        """Contiguous copy that ends, or begins, at the boundary of its readable pages."""
        size = like.numel() * like.element_size()
        if not size:
            return like.clone()
        room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        base = _libc.mmap(None, 2 * GUARD_BYTES + room, 0, flags, -1, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            raise MemoryError("no addresses for a guarded tensor")
        self._areas.append((base, 2 * GUARD_BYTES + room))
        inside = base + GUARD_BYTES
        if _libc.mprotect(inside, room, mmap.PROT_READ | mmap.PROT_WRITE):
            raise MemoryError("no pages for a guarded tensor")
        data = (ctypes.c_char * size).from_address(inside + (room - size if at_end else 0))
        return torch.frombuffer(data, dtype=like.dtype).reshape(like.shape).copy_(like)

    def close(self) -> None:
        """Unmap the memory."""
        for base, size in self._areas:
            _libc.munmap(base, size)
        self._areas = []
