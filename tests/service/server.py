"""The real service in a process of its own, on a free loopback port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
START_S = 300.0
_READY = re.compile(r"autosbp is ready at (http://[\d.]+:\d+)")


def rss_mib(pid: int) -> float:
    """The memory that a process has now."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


class Server:
    """``python -m MODULE`` with settings in the environment; ends the process it started. ``within`` is a command that
    becomes it."""

    def __init__(
        self, data_dir: Path, module: str = "autosbp.service", within: Sequence[str] = (), **settings: object
    ) -> None:
        named = {f"AUTOSBP_{name.upper()}": str(value) for name, value in settings.items()}
        self._process = subprocess.Popen(
            [
                *within,
                "env",
                "--default-signal=INT",
                sys.executable,
                "-m",
                module,
            ],  # which a shell in the background ignores
            cwd=ROOT,
            env={**os.environ, "AUTOSBP_PORT": "0", "AUTOSBP_DATA_DIR": str(data_dir), **named},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGTERM)

    @property
    def url(self) -> str:
        """The address, once the service is ready; as long as its process lives, it may still become so."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            if found := _READY.search("".join(self.log)):
                return found[1]
            assert self._process.poll() is None, "".join(self.log)
            time.sleep(0.02)
        raise AssertionError("".join(self.log))

    def begins(self) -> bool:
        """Whether it becomes ready, or ends before."""
        while self._process.poll() is None:
            if _READY.search("".join(self.log)):
                return True
            time.sleep(0.02)
        return False

    def end(self, number: int = 0) -> tuple[int, str]:
        """Send a signal (none for 0) and wait for the end; the exit status and what was on standard output."""
        if number and self._process.poll() is None:
            self._process.send_signal(number)
        status = self._process.wait(START_S)
        self._reader.join(START_S)
        assert self._process.stdout is not None and self._process.stderr is not None
        out = "" if self._process.stdout.closed else self._process.stdout.read()
        self._process.stdout.close()
        self._process.stderr.close()
        return status, out

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
