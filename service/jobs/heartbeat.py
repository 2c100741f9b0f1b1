"""The health of the workers on this machine, for supervisors: a file of each, written while it works.

A worker writes its file in ``DATA/workers`` every few seconds, as long as all its threads live and have lately done their part,
which needs the database. So a worker that hangs, or cannot reach the database, is found by a file that has become old. The
clock is that of this boot of the machine, and processes are told apart as in ``service.jobs._processes``: files of other
machines and containers in a shared data folder do not count here.
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

from autosbp.processes import start_ticks
from service.jobs._processes import machine

_FORGOTTEN_S = 86_400.0


class Heartbeat:
    """One process' file. ``good_for_s`` is how old it may become.

    Args:
        data_dir: the service's data folder.
    """

    def __init__(self, data_dir: Path, good_for_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._good_for_s, self._clock = data_dir.resolve() / "workers", good_for_s, clock
        self._path = self._folder / f"{secrets.token_hex(8)}.json"

    def begin(self) -> None:
        """Make room, and drop files of processes that are gone."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            with suppress(OSError):
                known = _read(path)
                old = time.time() - path.stat().st_mtime > _FORGOTTEN_S
                if old or (known is not None and known["machine"] == machine() and not _lives(known)):
                    path.unlink()

    def beat(self) -> None:
        """Say that this process works."""
        pid = os.getpid()
        document = {
            "machine": machine(),
            "pid": pid,
            "started": start_ticks(pid),
            "beaten_s": self._clock(),
            "good_for_s": self._good_for_s,
        }
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps(document))
        draft.replace(self._path)

    def end(self) -> None:
        """This process works no more."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def ailments(data_dir: Path, clock: Callable[[], float] = time.monotonic) -> list[str]:
    """What is wrong with the workers on this machine; none are an ailment, too."""
    here = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted((data_dir.resolve() / "workers").glob("*.json")):
            known = _read(path)
            if known is not None and known["machine"] == machine() and _lives(known):
                here.append(known)
    if not here:
        return [f"no worker of {data_dir} runs on this machine"]
    ages = [(known, clock() - known["beaten_s"]) for known in here]
    return [
        f"worker process {known['pid']} has not worked for {age_s:.0f} s"
        for known, age_s in ages
        if age_s > known["good_for_s"]
    ]


def _lives(known: dict[str, Any]) -> bool:
    return known["started"] is not None and start_ticks(known["pid"]) == known["started"]


def _read(path: Path) -> dict[str, Any] | None:
    """None for what is not whole, or not ours."""
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    names = ("machine", "pid", "started", "beaten_s", "good_for_s")
    return known if isinstance(known, dict) and all(name in known for name in names) else None
