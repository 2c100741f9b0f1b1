"""A real Ray cluster on this machine: a head with its dashboard and further nodes, each with two CPUs.

All listen on the loopback interface and are stopped by their process ids.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import httpx

from autosbp.service.jobs._processes import descendants

_START_S, _STOP_S, _POLL_S = 90.0, 3.0, 0.1
# between Ray's default worker ports (10002 to 19999) and the kernel's ephemeral ports
_FIRST_PORT, _LAST_PORT = 21_000, 32_000
_PORTS = (
    *("node-manager-port", "object-manager-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port"),
    *("runtime-env-agent-port", "metrics-export-port"),
)
_WORKERS = 40
_START = "from ray.scripts.scripts import main; main()"


class LocalRay:
    """Runs the cluster during the block; ``url`` is the dashboard's."""

    def __init__(self, log_folder: Path, num_nodes: int = 2) -> None:
        self._logs, self._num_nodes = log_folder, num_nodes
        self._stack = ExitStack()
        self._port = _free_ports(num_nodes * (_WORKERS + len(_PORTS)) + 3)
        self.url = f"http://127.0.0.1:{self._port + 1}"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # Socket paths have a length limit, which a test's own folder would exceed.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
            head = [
                "--head",
                f"--port={self._port}",
                "--dashboard-host=127.0.0.1",
                f"--dashboard-port={self._port + 1}",
            ]
            head += [f"--ray-client-server-port={self._port + 2}", "--include-dashboard=true", f"--temp-dir={folder}"]
            for node in range(self._num_nodes):
                stack.callback(_stop, self._start(node, head if node == 0 else [f"--address=127.0.0.1:{self._port}"]))
                if node == 0:
                    self._wait_for_port()
            self._wait_for_jobs()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self, node: int, options: list[str]) -> subprocess.Popen[bytes]:
        first = self._port + 3 + node * (_WORKERS + len(_PORTS))
        ports = [f"--{name}={first + at}" for at, name in enumerate(_PORTS)]
        workers = first + len(_PORTS)
        common = ["--num-cpus=2", f"--object-store-memory={80 * 2**20}", "--disable-usage-stats", "--block"]
        between = [f"--min-worker-port={workers}", f"--max-worker-port={workers + _WORKERS - 1}"]
        command = [
            sys.executable,
            "-c",
            _START,
            "start",
            "--node-ip-address=127.0.0.1",
            *options,
            *ports,
            *between,
            *common,
        ]
        env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        with (self._logs / f"ray-{node}.log").open("wb") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
            )

    def _wait_for_port(self) -> None:
        until_s = time.monotonic() + _START_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1.0):
                return
            self._pause(until_s)

    def _wait_for_jobs(self) -> None:
        """Wait until the Jobs API answers and all nodes are alive."""
        until_s = time.monotonic() + _START_S
        with httpx.Client(base_url=self.url, trust_env=False, timeout=5.0) as http:
            while True:
                with suppress(httpx.HTTPError, KeyError, ValueError):
                    nodes = http.get("/api/v0/nodes").json()["data"]["result"]["result"]
                    alive = sum(node["state"] == "ALIVE" for node in nodes)
                    if alive == self._num_nodes and http.get("/api/jobs/").status_code == 200:
                        return
                self._pause(until_s)

    def _pause(self, until_s: float) -> None:
        if time.monotonic() > until_s:
            logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self._logs.glob("ray-*.log"))
            raise TimeoutError(f"Ray did not start within {_START_S:g} s: {logs}")
        time.sleep(_POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a node and all processes it has started."""
    started = descendants(process.pid)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    process.kill()
    process.wait()
    for pid in started:
        with suppress(OSError):
            if b"ray" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def _free_ports(count: int) -> int:
    for first in range(_FIRST_PORT + os.getpid() % 50 * 200, _LAST_PORT, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise OSError(f"no {count} free ports between {_FIRST_PORT} and {_LAST_PORT}")
