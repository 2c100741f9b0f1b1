"""Mutated documents, read in a supervised process: no crash, no hang, and at most one GiB of memory."""

from __future__ import annotations

import importlib
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fuzz import _targets
from benchmarks.fuzz._targets import Target

MOST_BYTES = 2**30
_IDLE_FACTOR = 20
"""A process idle for this many times its limit also counts as hanging; other programs may occupy the processors."""
_INPUTS_PER_PROCESS = 500
"""Inputs per process; memory that libraries retain after captures would otherwise accumulate."""
_START_S = 60.0
_LOOK_S = 0.2


@dataclass(slots=True)
class Found:
    """Outcomes of the inputs of one kind."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)
    slowest_cpu_s: float = 0.0
    peak_bytes: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "inputs": sum(self.outcomes.values()),
            **{name: self.outcomes[name] for name in ("accepted", "refused", "crash", "hang", "memory", "unclear")},
            "slowest_cpu_s": round(self.slowest_cpu_s, 2),
            "peak_bytes": self.peak_bytes,
            "seconds": round(self.seconds, 1),
            "findings": self.findings,
        }


def read_mutated(name: str, seed: int, count: int, module: str = _targets.__name__) -> Found:
    """Read ``count`` mutated inputs of a kind, one of the ``TARGETS`` of a module.

    A process that does not survive an input is replaced by a new one.
    """
    target: Target = importlib.import_module(module).TARGETS[name]
    found, begun_s, first = Found(), time.monotonic(), 0
    while first < count:
        count_here = min(_INPUTS_PER_PROCESS, count - first)
        arguments = (module, name, *map(str, (seed, first, count_here, MOST_BYTES)))
        first = _watch(arguments, target.limit_s, first, count_here, found)
    found.seconds = time.monotonic() - begun_s
    return found


def _watch(arguments: tuple[str, ...], limit_s: float, first: int, count: int, found: Found) -> int:
    """Run one process; returns the number of the first input that it did not finish."""
    command = [sys.executable, "-m", f"{__package__}._worker", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    at, cpu_s, clock_s, most_s = first, 0.0, time.monotonic(), _START_S
    try:
        while True:
            try:
                line = lines.get(timeout=_LOOK_S)
            except queue.Empty:
                word = _overdue(process.pid, most_s, cpu_s, clock_s)
                if word is None:
                    continue
                found.outcomes[word] += 1
                found.findings.append({"input": at, "outcome": word})
                return at + 1
            if line is None:
                break
            said = json.loads(line)
            if "begins" in said:
                at, cpu_s, clock_s, most_s = said["begins"], said["cpu_s"], time.monotonic(), limit_s
                continue
            found.outcomes[said["outcome"]] += 1
            found.slowest_cpu_s = max(found.slowest_cpu_s, said["cpu_s"])
            found.peak_bytes = max(found.peak_bytes, said["peak_bytes"])
            if said["outcome"] not in ("accepted", "refused"):
                found.findings.append({"input": at, **{key: said[key] for key in ("outcome", "error", "text")}})
            at, most_s = at + 1, _START_S
            if at == first + count:
                return at
    finally:
        process.kill()
        process.wait()
        reader.join()
    if at < first + count:
        found.outcomes["crash"] += 1
        found.findings.append(
            {"input": at, "outcome": "crash", "error": f"the process ended with {process.returncode}"}
        )
        at += 1
    return at


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout as said:
        for line in said:
            lines.put(line)
    lines.put(None)


def _overdue(pid: int, limit_s: float, cpu_s: float, clock_s: float) -> str | None:
    """Reason to stop a silent process: ``hang`` (computing or idle for too long) or ``memory``; None if there is none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    if peak is not None and 1024 * int(peak[1]) > MOST_BYTES:
        return "memory"
    used_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") - cpu_s
    return "hang" if used_s > limit_s or time.monotonic() - clock_s > _IDLE_FACTOR * limit_s else None
