"""Temporary resource limits of this process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import resource
except ImportError:  # this system has no such limits
    resource = None  # type: ignore[assignment]

_STATUS = Path("/proc/self/status")
_MEMORY, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
_DATA = re.compile(r"^VmData:\s+(\d+) kB$", re.MULTILINE)


@contextmanager
def memory_limit(num_bytes: int) -> Iterator[None]:
    """Limit the private memory of the whole process to ``num_bytes`` more than it uses now.

    An allocation beyond it raises ``MemoryError``, in torch's allocator ``RuntimeError``, before the machine runs out
    of memory. It works only on systems that count private memory (Linux); a lower existing limit stays.
    """
    used = _used_bytes()
    if resource is None or used is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used + num_bytes
    known = [limit for limit in (soft, hard, wanted) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def free_bytes() -> int | None:
    """Bytes of memory available in the machine or container; None if the system (other than Linux) hides it."""
    try:
        found = _AVAILABLE.search(_MEMORY.read_text())
        left = [] if found is None else [1024 * int(found[1])]
        most = _GROUP.joinpath("memory.max").read_text().strip() if _GROUP.joinpath("memory.max").exists() else "max"
        if most != "max":
            left.append(max(0, int(most) - int(_GROUP.joinpath("memory.current").read_text())))
    except (OSError, ValueError):
        return None
    return min(left, default=None)


def _used_bytes() -> int | None:
    try:
        found = _DATA.search(_STATUS.read_text())
    except OSError:
        return None
    return None if found is None else 1024 * int(found[1])
