"""Starts the ranks of a calibration on this machine with torchrun, watches them, and ends what it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autosbp.errors import CalibrationError, InputError
from autosbp.jsonio import canonical
from calibration._request import Request, measurement_names
from calibration._results import Results, read_results

_POLL_S = 0.1
_GRACE_S = 15.0
_LOG_TAIL_BYTES = 8000
MAX_LOCAL_RANKS = 64


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` of ``total`` measurements are made and ``name`` is running."""

    done: int
    total: int
    name: str


def launch(request: Request, workdir: Path, progress: Callable[[Progress], None] | None = None) -> Results:
    """Run ``request`` with one rank per device of its cluster, all on this machine, and return the results.

    ``workdir`` gets ``request.json``, ``results.jsonl`` (a line per measurement, kept whatever happens) and
    ``ranks.log``. Only the loopback interface is used. ``OMP_NUM_THREADS`` is 1 unless the environment sets it. Raises
    ``CalibrationError`` with the name of the measurement and the end of the log when a rank fails or
    ``request.timeout_s`` passes, and ``InputError`` above ``MAX_LOCAL_RANKS`` ranks. An exception of ``progress`` ends
    the run. No process is left behind.
    """
    if request.cluster.num_devices > MAX_LOCAL_RANKS:
        raise InputError("cluster", request.cluster.name, f"at most {MAX_LOCAL_RANKS} ranks can start on one machine")
    results_path, log_path = workdir / "results.jsonl", workdir / "ranks.log"
    (workdir / "request.json").write_bytes(canonical(request.to_dict()))
    results_path.unlink(missing_ok=True)
    names = measurement_names(request)
    deadline = time.monotonic() + request.timeout_s
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            _command(request, workdir), stdout=log, stderr=subprocess.STDOUT, env=_environment(), start_new_session=True
        )
    shown = -1
    try:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            begun = read_results(results_path).begun if progress else ()
            if progress and len(begun) - 1 > shown:
                shown = len(begun) - 1
                progress(Progress(shown, len(names), begun[-1]))
            if time.monotonic() > deadline:
                raise _failure(f"timed out after {request.timeout_s:g} s", results_path, log_path)
    finally:
        _end(process)
    if process.returncode != 0:
        raise _failure("a rank failed", results_path, log_path)
    return read_results(results_path)


def _command(request: Request, workdir: Path) -> list[str]:
    return [
        *(
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes=1",
            f"--nproc-per-node={request.cluster.num_devices}",
        ),
        *("--master-addr=127.0.0.1", f"--master-port={_free_port()}", "--local-addr=127.0.0.1", "--max-restarts=0"),
        *("-m", "calibration._worker", str(workdir / "request.json"), str(workdir / "results.jsonl")),
    ]


def _environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [root]
    forced = {"PYTHONPATH": os.pathsep.join(paths), "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return {"OMP_NUM_THREADS": "1", **os.environ, **forced}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _failure(what: str, results_path: Path, log_path: Path) -> CalibrationError:
    tail = log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    name = read_results(results_path).current
    return CalibrationError(f"{name}: {what}; results so far are in {results_path}\nend of the ranks' log:\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask torchrun to stop its ranks; if it does not, end it and them by process id."""
    if process.poll() is not None:
        return
    ranks = _children(process.pid)
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in ranks:
        with suppress(OSError):
            if b"calibration._worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found
