"""Daemons of a test's own: started with little of its environment, ended by their processes."""

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
    """A daemon that works and writes NAME.out in a folder. Its environment becomes that of its jobs in part, so it has
    little of ours."""
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
    """End it, and wait for that."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until(holds: Callable[[], bool], folder: Path, name: str) -> None:
    """Poll until something holds that the daemon NAME is started for; ``TimeoutError`` with what it wrote."""
    until_s = time.monotonic() + START_S
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(f"{name} is not ready: {(folder / f'{name}.out').read_text()[-2000:]}")
        time.sleep(POLL_S)


def free_ports(count: int) -> int:
    """The first of ``count`` neighbouring ports that are free, below those that the kernel gives out."""
    for first in range(21_000 + os.getpid() % 1000 * 8, 32_000, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise OSError("no free ports between 21000 and 32000")
