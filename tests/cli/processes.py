"""The installed program in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

_AS_USUAL = "import signal as s; s.signal(s.SIGHUP, s.SIG_DFL); s.signal(s.SIGINT, s.default_int_handler)"
COMMAND = [sys.executable, "-c", f"{_AS_USUAL}; from autosbp.cli import main; main()"]
"""The program; what started the tests may ignore signals, as nohup does, which its processes would, too."""
ROOT = Path(__file__).parents[2]


def environment(**changes: str) -> dict[str, str]:
    paths = [str(ROOT), os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **changes}


def autosbp(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    command = [*COMMAND, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment(), timeout=90)


class Started:
    """A command that runs beside the test, with more variables in its environment; always ended, by its process id."""

    def __init__(self, *arguments: object, cwd: Path, **changes: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, *(str(argument) for argument in arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=environment(**changes),
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)
        self._reader.join(30)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def wait_for(self, found: Callable[[str], bool], timeout_s: float = 60.0) -> str:
        """The first line on standard error for which ``found`` holds."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for line in list(self.lines):
                if found(line):
                    return line
            assert self._process.poll() is None, "".join(self.lines)
            time.sleep(0.05)
        raise AssertionError("".join(self.lines))

    def end(self, signal_number: int) -> tuple[int, str]:
        """Send a signal; the exit code, and what is on standard output."""
        self._process.send_signal(signal_number)
        assert self._process.stdout is not None
        out = self._process.stdout.read()
        return self._process.wait(60), out

    @property
    def descendants(self) -> set[int]:
        """Processes that this one, or one of those, started."""
        parents: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
        found = {self._process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {self._process.pid}

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line)
