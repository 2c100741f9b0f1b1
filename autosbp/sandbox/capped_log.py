"""Size-capped logs of processes that may print without end: one file with the first and the last part of the output."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MOST_BYTES = 8 * 2**20
_CHUNK_BYTES = 2**16
_POLL_S, _LEAVE_S = 0.2, 2.0


@contextmanager
def capped_log(path: Path, most_bytes: int = MOST_BYTES) -> Iterator[int]:
    """Yield a file descriptor for the output of processes; their log is complete when the block ends.

    The first half of ``most_bytes`` is written at once. Of later output at most the last half is kept in memory; it is
    written at the end, after a line with the number of bytes left out. The file only grows.

    Args:
        path: file of the log.
        most_bytes: size limit of the log.
    """
    reading, writing = os.pipe()
    try:
        copy = _Copy(path, reading, most_bytes)
    except BaseException:
        os.close(reading)
        os.close(writing)
        raise
    try:
        yield writing
    finally:
        os.close(writing)
        copy.finish()


class _Copy:
    """Thread that copies output until all writers have closed it.

    It does not wait for a process that outlives the others.
    """

    def __init__(self, path: Path, reading: int, most_bytes: int) -> None:
        self._file = path.open("wb", buffering=0)
        self._reading, self._half = reading, most_bytes // 2
        self._written, self._left_out, self._last = 0, 0, bytearray()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._copy, daemon=True, name=f"log {path.name}")
        self._thread.start()

    def _copy(self) -> None:
        poll = select.poll()
        poll.register(self._reading)
        while not self._over.is_set():
            if poll.poll(1000 * _POLL_S):
                if not (chunk := os.read(self._reading, _CHUNK_BYTES)):
                    return
                self._take(chunk)

    def finish(self) -> None:
        """Write the kept end and close the log; call it after closing the writing end."""
        self._thread.join(_LEAVE_S)
        self._over.set()
        self._thread.join()
        os.close(self._reading)
        if self._left_out:
            self._write(f"\n[{self._left_out} bytes of the log omitted]\n".encode())
        self._write(bytes(self._last))
        self._file.close()

    def _take(self, chunk: bytes) -> None:
        first = chunk[: self._half - self._written]
        self._written += len(first)
        self._write(first)
        self._last += chunk[len(first) :]
        over = max(len(self._last) - self._half, 0)
        del self._last[:over]
        self._left_out += over

    def _write(self, data: bytes) -> None:
        """Write to the log; a full disk truncates it without failing the processes that print."""
        rest = memoryview(data)
        with suppress(OSError):
            while rest:
                rest = rest[self._file.write(rest) :]
