"""Start the ranks of a calibration, follow their measurements, and keep partial results."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autosbp.calibration._request import Request, measurement_names
from autosbp.calibration._results import Results, read_results
from autosbp.errors import CalibrationError, InputError
from autosbp.launch.local import MAX_LOCAL_RANKS, Launch, run_ranks
from autosbp.sandbox.regular_files import open_regular
from autosbp.utils.json_io import canonical, loads
from autosbp.utils.processes import find_by_namespace_pid, start_ticks

_WORKER = "autosbp.calibration._rank_worker"
_MAX_READ_BYTES = 2**26  # of results per read
_PROBE_BYTES = 2**16  # larger than any result, so that a disk too full for results is detected
_STATES = {"T": "stopped", "t": "being traced", "Z": "dead", "D": "waiting for the kernel"}


@dataclass(frozen=True, slots=True)
class Progress:
    """Measurement ``name`` is running; ``done`` of ``total`` are finished."""

    done: int
    total: int
    name: str


def launch(
    request: Request,
    workdir: Path,
    start: Launch,
    progress: Callable[[Progress], None] | None = None,
    *,
    max_ranks: int = MAX_LOCAL_RANKS,
    queued: bool = False,
    resume: bool = False,
    cancelled: Callable[[], bool] | None = None,
) -> Results:
    """Run ``request`` with one rank per device of its cluster and return the results; leaves no processes behind.

    Args:
        workdir: folder for ``request.json``, ``results.jsonl`` (a line per measurement, always kept) and ``ranks.log``.
            Unused results of the same request are continued; unfinished results of another request are kept next to
            them, named after its id.
        start: starts the ranks.
        progress: called at the start of each measurement; an exception from it ends the run.
        max_ranks: maximum number of ranks that ``start`` can start.
        queued: ranks may wait in a queue, so the time box does not count their start.
        resume: ``start`` may find ranks already working on this request; their results are left untouched.
        cancelled: polled; returning True ends the run.

    Raises:
        CalibrationError: a rank failed or hung, ``request.timeout_s`` passed, or the run was cancelled; the message has
            the name of the measurement and the end of the log.
        InputError: more than ``max_ranks`` ranks are needed.
    """
    if request.cluster.num_devices > max_ranks:
        where = "on one machine" if max_ranks == MAX_LOCAL_RANKS else "there"
        raise InputError("cluster", request.cluster.name, f"at most {max_ranks} ranks can start {where}")
    results_path, request_path = workdir / "results.jsonl", workdir / "request.json"
    with writing_to(workdir):
        if not (resume and is_same_request(request, request_path)):
            prepare_results_file(request, results_path, counts_start=not queued)
            _put(request_path, canonical(request.to_dict()))
    if (found := read_results(results_path)).done:
        return found
    watch = ProgressWatcher(request, results_path, progress)
    outcome = start(
        _WORKER,
        [str(request_path), str(results_path)],
        request.cluster.num_devices,
        workdir / "ranks.log",
        timeout_s=request.timeout_s,
        poll=lambda: not (cancelled is not None and cancelled()) and watch.look(),
    )
    results = read_results(results_path)
    reason = watch.stalled or outcome.reason
    if reason:
        if unwritable := why_unwritable(workdir):  # then the log is empty for the same reason
            reason += f": cannot write {workdir}: {unwritable}"
        raise CalibrationError(
            f"{results.current}: {reason}; {len(results.made)} results so far are in {results_path}\nlast lines of "
            f"the ranks' log:\n{outcome.log_tail}"
        )
    return results


def describe_launch(start: Launch) -> str:
    """Describe how ``start`` starts ranks, in words that are equal in every process.

    It is part of the request: points measured over one network interface do not apply to another.
    """
    inner, given = (start.func, start.keywords) if isinstance(start, partial) else (start, {})
    if inner is run_ranks:
        given = {"interface": "lo", **given}
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return " ".join(
        [name, *(f"{key}={value}" for key, value in sorted(given.items()) if isinstance(value, (str, int)))]
    )


def is_same_request(request: Request, path: Path) -> bool:
    """Whether the file holds an equivalent request; ``timeout_s`` and ``stall_s`` may differ."""
    with suppress(FileNotFoundError, InputError, KeyError, TypeError):  # missing, truncated, or from another release
        return Request.from_dict(loads(path.read_bytes(), path.name)).request_id == request.request_id
    return False


def prepare_results_file(request: Request, path: Path, counts_start: bool = True) -> None:
    """Prepare the results file at ``path``: keep unused results of the same request, else start a new file.

    Appends a header with the request's id, the owner process and, with ``counts_start``, the time from which the start
    of the ranks counts. Kills ranks left by a killed run. Raises ``InputError`` while another live process calibrates
    with this file.
    """
    text = path.read_bytes() if path.exists() else b""
    text = text[: text.rfind(b"\n") + 1]
    known = Results()
    with suppress(InputError):  # an unreadable file is also kept next to the new one
        known = read_results(path)
    _kill_leftover_ranks(known, path)
    same = known.request_id == request.request_id and not known.taken
    if text and not same and not known.taken:
        path.rename(path.with_name(f"results-{known.request_id or 'unknown'}.jsonl"))
    header: dict[str, Any] = {"request": request.request_id, "owner": [os.getpid(), start_ticks(os.getpid())]}
    if counts_start:
        header["at_s"] = time.time()
    # Write a new file: a leftover rank that writes to the old one must not add to it.
    _put(path, (text if same else b"") + canonical(header) + b"\n")


def _put(path: Path, data: bytes) -> None:
    """Replace a file atomically."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(data)
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def writing_to(workdir: Path) -> Iterator[None]:
    """Turn an ``OSError`` of writing into an ``InputError`` that names the folder."""
    try:
        yield
    except OSError as error:
        limit = f"expected a writable folder ({error.strerror})"
        raise InputError("workdir", str(workdir), limit) from None


def why_unwritable(workdir: Path) -> str:
    """The system's reason why a folder cannot be written; empty if it can."""
    try:
        _put(workdir / "room", bytes(_PROBE_BYTES))
        (workdir / "room").unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _kill_leftover_ranks(known: Results, path: Path) -> None:
    """Kill the ranks of a run whose owner was killed: processes named in its results that were given this file."""
    if known.owner is not None and known.owner[0] != os.getpid() and start_ticks(known.owner[0]) == known.owner[1]:
        limit = f"in use by calibration process {known.owner[0]}; use another folder"
        raise InputError("workdir", str(path.parent), limit)
    for pid in known.pids:
        with suppress(OSError):
            if (left := find_by_namespace_pid(pid, _WORKER, str(path))) is not None:
                os.kill(left, signal.SIGKILL)


def mark_used(workdir: Path) -> None:
    """Mark the results as used for a calibration, so that another run of the same request measures anew."""
    with writing_to(workdir), (workdir / "results.jsonl").open("ab") as file:
        file.write(canonical({"taken": True}) + b"\n")


class ProgressWatcher:
    """Watches the results file while ranks run, reports progress and detects stalls."""

    def __init__(self, request: Request, path: Path, progress: Callable[[Progress], None] | None) -> None:
        self.path, self.progress, self.stall_s = path, progress, request.stall_s
        self.total = len(measurement_names(request))
        self.results, self.at = Results(), 0
        self._read()
        self.shown = {"between measurements"}
        self.changed_ns, self.changed_s = 0, time.monotonic()
        self.stalled = ""

    def look(self) -> bool:
        """Poll the file; False ends the run, with the reason in ``stalled``."""
        self._read()
        name = self.results.current
        if self.progress is not None and self.results.begun and name not in self.shown:
            self.shown.add(name)
            # Measurements made in rounds have all begun before any of them is done.
            done = self.results.made.union(self.results.begun) - {name}
            self.progress(Progress(len(done), self.total, name))
        changed_ns = self.path.stat().st_mtime_ns
        if changed_ns != self.changed_ns or not self.results.pids:
            self.changed_ns, self.changed_s = changed_ns, time.monotonic()
        if time.monotonic() - self.changed_s > self.stall_s:
            self.stalled = (
                f"no rank has responded for {self.stall_s:g} s{_describe_stopped_ranks(self.results.pids, self.path)}"
            )
        return not self.stalled

    def _read(self) -> None:
        """Read only new lines: the file is long, and the ranks need the processor."""
        with open_regular(self.path) as file:
            file.seek(self.at)
            data = file.read(_MAX_READ_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        self.at += len(whole)
        for line in whole.splitlines():
            self.results.read(line, self.path.name)


def _describe_stopped_ranks(pids: tuple[int, ...], path: Path) -> str:
    """Ranks whose process is not running, as text.

    Covers only ranks of this machine; dead ones can be seen only outside of a sandbox.
    """
    found = []
    for rank, pid in enumerate(pids):
        with suppress(OSError):
            here = find_by_namespace_pid(pid, _WORKER, str(path))
            state = Path(f"/proc/{here or pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state in _STATES and (here is not None or state == "Z"):
                found.append(f"rank {rank} (process {here or pid}) is {_STATES[state]}")
    return f": {', '.join(found)}" if found else ""
