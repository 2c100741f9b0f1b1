"""Processes of the service that are started and killed, and a record of the jobs that they accepted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
STUCK_S, _PATIENCE_S = 60.0, 300.0
FINAL = ("succeeded", "failed", "cancelled")
_READY = re.compile(r"autosbp is ready at (http://\S+)|autosbp worker is ready")
_START_S = 300.0


class Process:
    """A process of ``benchmarks.chaos._app`` with the given settings; signalled by its process id."""

    def __init__(self, folder: Path, mode: str, **settings: object) -> None:
        named = {f"AUTOSBP_{name.upper()}": str(value) for name, value in settings.items() if value is not None}
        own = {"CHAOS_MODE": mode, "CHAOS_RUNS": str(folder / "runs"), "AUTOSBP_PORT": "0", "AUTOSBP_OTEL": "false"}
        own["AUTOSBP_RANK_VARIABLES"] = '["CHAOS_RUNS", "CHAOS_RUN_S"]'
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.chaos._app"],
            cwd=ROOT,
            env={"CHAOS_RUN_S": "0.3", **os.environ, **own, "AUTOSBP_DATA_DIR": str(folder / "data"), **named},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self) -> bool:
        """Wait until it serves or works; False if it died first."""
        deadline_s = time.monotonic() + _START_S
        while not self._ready.wait(0.02):
            if self._process.poll() is not None:
                return False
            if time.monotonic() > deadline_s:
                raise RuntimeError("the service does not start: " + "".join(self.log))
        return True

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send a signal if the process is alive, wait for its end and return its exit status."""
        if self.is_alive:
            self._process.send_signal(number)
        status = self._process.wait(_START_S)
        self._reader.join(_START_S)
        return status

    def wait(self, timeout_s: float) -> bool:
        """Whether the process ends by itself within the timeout."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self.log.append(line)
                if found := _READY.search(line):
                    self.url = found[1] or ""
                    self._ready.set()


@dataclass(slots=True)
class JobRecord:
    """Accepted jobs, and statistics of the responses."""

    runs: Path
    accepted: dict[str, str] = field(default_factory=dict)
    answers: Counter[int] = field(default_factory=Counter)
    slowest_s: float = 0.0
    stuck: int = 0

    def post(self, url: str, kind: str, path: str, body: dict[str, Any]) -> str | None:
        """Post a job and return its id if it was accepted; None if the service refuses or dies meanwhile."""
        try:
            answer = httpx.post(url + path, json=body, headers={"cache-control": "no-cache"}, timeout=30)
        except httpx.HTTPError:
            return None
        self.answers[answer.status_code] += 1
        if answer.status_code != 202:
            return None
        job_id: str = answer.json()["id"]
        self.accepted[job_id] = kind
        return job_id

    def num_waiting(self, url: str) -> int:
        """Number of queued jobs; 100 if the service does not answer."""
        try:
            answer = httpx.get(f"{url}/v1/jobs", params={"state": "queued", "limit": 100}, timeout=30)
        except httpx.HTTPError:
            return 100
        self.answers[answer.status_code] += 1
        return len(answer.json()["items"]) if answer.status_code == 200 else 100

    def settle(self, url: str) -> dict[str, str]:
        """Wait until every accepted job has ended, up to a generous limit, and return their states."""
        begun_s, states = time.monotonic(), dict.fromkeys(self.accepted, "lost")
        waited_s = 0.0
        while (left := [job for job, state in states.items() if state not in FINAL]) and waited_s < _PATIENCE_S:
            for job_id in left:
                try:
                    answer = httpx.get(f"{url}/v1/jobs/{job_id}", timeout=30)
                except httpx.HTTPError:
                    continue
                self.answers[answer.status_code] += 1
                if answer.status_code == 200:
                    states[job_id] = answer.json()["state"]
            time.sleep(0.05)
            waited_s = time.monotonic() - begun_s
            self.slowest_s = max(self.slowest_s, waited_s)
            if waited_s > STUCK_S and not self.stuck:
                self.stuck = sum(state not in FINAL for state in states.values())
        return states

    def num_repeated(self) -> int:
        """Number of completed runs after another completed run of the same job.

        The earlier run's process was killed before it stored the outcome.
        """
        ends = Counter(words[2] for words in self._words() if words[0] == "end")
        return sum(ends[job] - 1 for job in self.accepted if ends[job])

    def num_twice(self) -> int:
        """Number of runs that began after their job's outcome was stored, or ended after a later run had begun."""
        last: dict[str, int] = {}
        kept, found = set(), 0
        for word, _, job, attempt, _ in self._words():
            if word == "kept":
                kept.add(job)
            elif word == "begin":
                last[job] = int(attempt)
                found += job in kept
            else:
                found += int(attempt) != last.get(job)
        return found

    def _words(self) -> list[list[str]]:
        if not self.runs.exists():
            return []
        return [line.split() for line in self.runs.read_text().splitlines()]

    def summary(self, states: dict[str, str], kills: int) -> dict[str, Any]:
        """The counts as a row."""
        return {
            "kills": kills,
            "accepted": len(states),
            "succeeded": sum(state == "succeeded" for state in states.values()),
            "lost": sum(state == "lost" for state in states.values()),
            "failed": sum(state in ("failed", "cancelled") for state in states.values()),
            "twice": self.num_twice(),
            "repeated": self.num_repeated(),
            "stuck": self.stuck,
            "5xx": sum(count for status, count in self.answers.items() if status >= 500 and status != 503),
            "503": self.answers[503],
            "slowest_s": round(self.slowest_s, 1),
        }
