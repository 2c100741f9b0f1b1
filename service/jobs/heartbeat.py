"""Health of the workers on this machine, for supervisors such as systemd: one heartbeat file per worker.

A worker writes its file in ``DATA/workers`` every few seconds, as long as all its threads are alive and have recently
done their work, which needs the database. A worker that hangs or cannot reach the database therefore has an old file.
Times are of the clock of this boot, and processes are identified as in ``autosbp.service.jobs._processes``: files of other
machines and containers in a shared data folder are ignored.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from autosbp.service.jobs._processes import pid_scope
from autosbp.utils.processes import start_ticks

_DELETE_AFTER_S = 86_400.0


class Heartbeat:
    """The heartbeat file of this process.

    Args:
        data_dir: the service's data folder.
        good_for_s: age in seconds from which the file counts as too old.
        clock: a monotonic clock of this boot.
    """

    def __init__(self, data_dir: Path, good_for_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._max_age_s, self._clock = data_dir.resolve() / "workers", good_for_s, clock
        self._path = self._folder / f"{secrets.token_hex(8)}.json"

    def begin(self) -> None:
        """Create the folder and delete files of ended processes."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            with suppress(OSError):
                known = _read(path)
                old = time.time() - path.stat().st_mtime > _DELETE_AFTER_S
                if old or (known is not None and known["machine"] == pid_scope() and not _is_alive(known)):
                    path.unlink()

    def beat(self) -> None:
        """Write the file."""
        pid = os.getpid()
        document = {
            "machine": pid_scope(),
            "pid": pid,
            "started": start_ticks(pid),
            "beaten_s": self._clock(),
            "good_for_s": self._max_age_s,
        }
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps(document))
        draft.replace(self._path)

    def end(self) -> None:
        """Delete the file."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def unhealthy_workers(data_dir: Path, clock: Callable[[], float] = time.monotonic) -> list[str]:
    """Describe the unhealthy workers on this machine; having no worker is also a problem."""
    here = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted((data_dir.resolve() / "workers").glob("*.json")):
            known = _read(path)
            if known is not None and known["machine"] == pid_scope() and _is_alive(known):
                here.append(known)
    if not here:
        return [f"no worker of {data_dir} is running on this machine"]
    ages = [(known, clock() - known["beaten_s"]) for known in here]
    return [
        f"worker process {known['pid']} has been stalled for {age_s:.0f} s"
        for known, age_s in ages
        if age_s > known["good_for_s"]
    ]


def _is_alive(known: dict[str, Any]) -> bool:
    return known["started"] is not None and start_ticks(known["pid"]) == known["started"]


def _read(path: Path) -> dict[str, Any] | None:
    """Read a heartbeat file; None if it is incomplete or has another format."""
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    names = ("machine", "pid", "started", "beaten_s", "good_for_s")
    return known if isinstance(known, dict) and all(name in known for name in names) else None
