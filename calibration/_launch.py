"""Starts the ranks of a calibration, follows their measurements, and keeps partial results."""

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

from autosbp.errors import CalibrationError, InputError
from autosbp.jsonio import canonical, loads
from autosbp.processes import start_ticks
from autosbp.torchrun import MAX_LOCAL_RANKS, Launch, run_ranks
from calibration._request import Request, measurement_names
from calibration._results import Results, read_results

_WORKER = "calibration._worker"
_ROOM_BYTES = 2**16  # more than the results that a disk can be too full for
_STATES = {"T": "stopped", "t": "being traced", "Z": "dead", "D": "waiting for the kernel"}


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` of ``total`` measurements are made and ``name`` is running."""

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
    """Run ``request`` with one rank per device of its cluster, started by ``start``, and return the results.

    ``workdir`` gets ``request.json``, ``results.jsonl`` (a line per measurement, kept whatever happens) and
    ``ranks.log``. Results of the same request that nobody has taken yet are continued, others that are not finished are
    kept beside them under the id of their request. With ``resume``, ``start`` may find ranks that are at work on this
    request already: their results are left as they are. Raises ``CalibrationError`` with the name of the measurement and the
    end of the log when a rank fails or hangs, ``request.timeout_s`` passes or ``cancelled`` says so, and ``InputError`` above
    ``max_ranks`` ranks. An exception of ``progress`` ends the run. No process is left behind.
    """
    if request.cluster.num_devices > max_ranks:
        where = "on one machine" if max_ranks == MAX_LOCAL_RANKS else "there"
        raise InputError("cluster", request.cluster.name, f"at most {max_ranks} ranks can start {where}")
    results_path, request_path = workdir / "results.jsonl", workdir / "request.json"
    with written(workdir):
        if not (resume and was_asked(request, request_path)):
            continue_or_begin(request, results_path, counts_start=not queued)
            _put(request_path, canonical(request.to_dict()))
    if (found := read_results(results_path)).done:
        return found
    watch = Watch(request, results_path, progress)
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
        if unwritable := why_unwritable(workdir):  # the log then says nothing, for the same reason
            reason += f": {workdir} cannot be written: {unwritable}"
        raise CalibrationError(
            f"{results.current}: {reason}; {len(results.made)} results so far are in {results_path}\n"
            f"end of the ranks' log:\n{outcome.log_tail}"
        )
    return results


def way_of(start: Launch) -> str:
    """How ``start`` starts ranks, in words that are the same in another process: points that were taken over one interface
    are not those of another."""
    inner, given = (start.func, start.keywords) if isinstance(start, partial) else (start, {})
    if inner is run_ranks:
        given = {"interface": "lo", **given}
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return " ".join(
        [name, *(f"{key}={value}" for key, value in sorted(given.items()) if isinstance(value, (str, int)))]
    )


def was_asked(request: Request, path: Path) -> bool:
    """Whether a file holds a request that finds the same; how long that may take is no part of it."""
    with suppress(FileNotFoundError, InputError, KeyError, TypeError):  # none, half of one, or of another release
        return Request.from_dict(loads(path.read_bytes(), path.name)).request_id == request.request_id
    return False


def continue_or_begin(request: Request, path: Path, counts_start: bool = True) -> None:
    """Leave in ``path`` what a run of the same request has found that was not taken, or nothing but the request's id; with
    the time, from which the start of the ranks counts, where it does.

    Ranks that a killed run has left are ended. Raises ``InputError`` while the run that writes to ``path`` goes on.
    """
    text = path.read_bytes() if path.exists() else b""
    text = text[: text.rfind(b"\n") + 1]
    known = Results()
    with suppress(InputError):  # a file that cannot be read is kept beside the new one, too
        known = read_results(path)
    _end_remains(known, path)
    same = known.request_id == request.request_id and not known.taken
    if text and not same and not known.taken:
        path.rename(path.with_name(f"results-{known.request_id or 'unknown'}.jsonl"))
    header: dict[str, Any] = {"request": request.request_id, "owner": [os.getpid(), start_ticks(os.getpid())]}
    if counts_start:
        header["at_s"] = time.time()
    # Another file: what a rank that was left writes to the old one is lost.
    _put(path, (text if same else b"") + canonical(header) + b"\n")


def _put(path: Path, data: bytes) -> None:
    """Write a file whole, or leave what was there."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(data)
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def written(workdir: Path) -> Iterator[None]:
    """An ``InputError`` that names the folder where something in it cannot be written."""
    try:
        yield
    except OSError as error:
        limit = f"a folder that can be written is expected ({error.strerror})"
        raise InputError("workdir", str(workdir), limit) from None


def why_unwritable(workdir: Path) -> str:
    """Why no more can be written to a folder, in the system's words; "" where it can."""
    try:
        _put(workdir / "room", bytes(_ROOM_BYTES))
        (workdir / "room").unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _end_remains(known: Results, path: Path) -> None:
    """End the ranks of a run whose owner was killed: those that its results name and that were given this file."""
    if known.owner is not None and known.owner[0] != os.getpid() and start_ticks(known.owner[0]) == known.owner[1]:
        limit = f"a folder that process {known.owner[0]} is not calibrating in is expected"
        raise InputError("workdir", str(path.parent), limit)
    for pid in known.pids:
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if _WORKER.encode() in command and str(path).encode() in command:
                os.kill(pid, signal.SIGKILL)


def mark_taken(workdir: Path) -> None:
    """A calibration was made of the results: another run of the same request measures anew."""
    with written(workdir), (workdir / "results.jsonl").open("ab") as file:
        file.write(canonical({"taken": True}) + b"\n")


class Watch:
    """Looks at the results file while ranks run: tells progress, and says no where nothing happens any more."""

    def __init__(self, request: Request, path: Path, progress: Callable[[Progress], None] | None) -> None:
        self.path, self.progress, self.stall_s = path, progress, request.stall_s
        self.total = len(measurement_names(request))
        self.results, self.at = Results(), 0
        self._read()
        self.shown = {"between measurements"}
        self.changed_ns, self.changed_s = 0, time.monotonic()
        self.stalled = ""

    def look(self) -> bool:
        """Called often; False ends the run, and ``stalled`` says why."""
        self._read()
        name = self.results.current
        if self.progress is not None and self.results.begun and name not in self.shown:
            self.shown.add(name)
            # Those that are measured in rounds have all begun before any of them is done.
            done = self.results.made.union(self.results.begun) - {name}
            self.progress(Progress(len(done), self.total, name))
        changed_ns = self.path.stat().st_mtime_ns
        if changed_ns != self.changed_ns or not self.results.pids:
            self.changed_ns, self.changed_s = changed_ns, time.monotonic()
        if time.monotonic() - self.changed_s > self.stall_s:
            self.stalled = f"no rank has answered for {self.stall_s:g} s{_suspects(self.results.pids)}"
        return not self.stalled

    def _read(self) -> None:
        """Take the lines that are new since the last look: the file is long, and the ranks need the processor."""
        with self.path.open("rb") as file:
            file.seek(self.at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.at += len(whole)
        for line in whole.splitlines():
            self.results.read(line, self.path.name)


def _suspects(pids: tuple[int, ...]) -> str:
    """Ranks whose process does not run, as words; only those of this machine can be seen."""
    found = []
    for rank, pid in enumerate(pids):
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state in _STATES and (_WORKER.encode() in command or state == "Z"):
                found.append(f"rank {rank} (process {pid}) is {_STATES[state]}")
    return f": {', '.join(found)}" if found else ""
