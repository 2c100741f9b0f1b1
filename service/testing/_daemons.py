"""Daemons for tests: started with a minimal environment, stopped by process."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
START_S, STOP_S, POLL_S = 30.0, 10.0, 0.05


def start(folder: Path, name: str, *command: str, **variables: str) -> subprocess.Popen[bytes]:
    """Start a daemon with ``folder`` as its working directory; it writes to NAME.out there.

    Its jobs inherit parts of its environment, so it gets only a few of our variables.
    """
    env = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    with (folder / f"{name}.out").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**env, "PATH": PATH, **variables},
            cwd=folder,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the daemon and wait until it has ended."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until(holds: Callable[[], bool], folder: Path, name: str) -> None:
    """Poll until ``holds()`` is true; raise ``TimeoutError`` with the output of the daemon NAME."""
    until_s = time.monotonic() + START_S
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(f"{name} is not ready: {(folder / f'{name}.out').read_text()[-2000:]}")
        time.sleep(POLL_S)


def free_ports(count: int) -> int:
    """Find ``count`` consecutive free ports below the kernel's ephemeral range; return the first."""
    for first in range(21_000 + os.getpid() % 1000 * 8, 32_000, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise OSError("no free ports between 21000 and 32000")
