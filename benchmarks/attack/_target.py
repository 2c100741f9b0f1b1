"""A real service with API keys, and external measurements of it: memory, disk, and response time of /healthz."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autosbp.service.auth.caller import SCOPES
from autosbp.service.db import Database
from autosbp.service.services import keys
from autosbp.service.settings import Settings
from benchmarks.service._load import percentile

_START_S, _SAMPLE_S = 120.0, 0.02
_READY = re.compile(r"autosbp is ready at (http://\S+)")


@dataclass(frozen=True, slots=True)
class Target:
    """A running service, with keys of two tenants; ``fresh`` is a valid key that it has not seen yet."""

    url: str
    pid: int
    folder: Path
    owner: str
    tenant: str
    fresh: str

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 80)


@dataclass(slots=True)
class Measurements:
    """Measurements during an attack."""

    idle_mib: float
    most_mib: float = 0.0
    healthz_s: list[float] = field(default_factory=list)
    unanswered: int = 0
    disk_mib: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The numbers that have targets."""
        p99 = math.nan if not self.healthz_s else percentile(self.healthz_s, 99)
        return {
            "memory_above_idle_mib": round(self.most_mib - self.idle_mib, 1),
            "healthz_p99_ms": round(1e3 * p99, 1),
            "healthz_max_ms": round(1e3 * max(self.healthz_s, default=math.nan), 1),
            "healthz_unanswered": self.unanswered,
            "disk_growth_mib": round(self.disk_mib, 1),
        }


@contextmanager
def run_service(folder: Path, **settings: object) -> Iterator[Target]:
    """Run a service on SQLite that also works on jobs, as ``autosbp serve`` starts it."""
    data = folder / "data"
    database = Database(Settings(data_dir=data).url)
    database.upgrade()
    owner, tenant, fresh = (keys.create(database.of(of), "attack", SCOPES).text for of in ("a", "b", "a"))
    database.close()
    named = {f"AUTOSBP_{name.upper()}": str(value) for name, value in {"data_dir": data, "port": 0, **settings}.items()}
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", "autosbp.service"], env={**os.environ, **named}, stderr=file)
    try:
        yield Target(_url(process, log), process.pid, data, owner, tenant, fresh)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if found := _READY.search(log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise RuntimeError(f"the service did not start: {log.read_text()[-2000:]}")


@contextmanager
def measure_service(target: Target) -> Iterator[Measurements]:
    """Measure the service during the block."""
    seen, ending = Measurements(resident_mib(target.pid)), threading.Event()
    seen.most_mib, before_mib = seen.idle_mib, disk_mib(target.folder)
    path = target.folder.parent / "probe"
    probe = subprocess.Popen([sys.executable, "-m", f"{__package__}._probe", *map(str, target.place), str(path)])

    def sample() -> None:
        while not ending.wait(_SAMPLE_S):
            seen.most_mib = max(seen.most_mib, resident_mib(target.pid))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        while not path.exists():
            time.sleep(0.01)
        yield seen
    finally:
        ending.set()
        thread.join()
        probe.terminate()
        probe.wait()
        taken = [float(line.split()[1]) for line in path.read_text().splitlines() if len(line.split()) == 2]
        path.unlink()
        seen.healthz_s = [each for each in taken if each >= 0]
        seen.unanswered = len(taken) - len(seen.healthz_s)
        seen.disk_mib = disk_mib(target.folder) - before_mib


def resident_mib(pid: int) -> float:
    """Resident memory of a process in MiB; 0 if it is gone."""
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def disk_mib(folder: Path) -> float:
    """Disk usage of the files in a folder, in MiB."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512 if path.is_file() else 0
        except OSError:  # removed meanwhile
            continue
    return total / 2**20
