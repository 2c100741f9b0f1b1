"""Kills of the service during real work: calibrating, searching, training, learning from trials. Ranks outlive it."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from autosbp.service.launchers._job_folder import JobFolder
from benchmarks.chaos._fleet import JobRecord, Process
from benchmarks.chaos.scenarios import KINDS, MAX_CRASH_WAIT_S, Bodies, Found, unsuccessful_jobs

_EFFORT: dict[str, dict[str, Any]] = {"calibrate": {"point_s": 0.02}, "search": {}, "trial": {"steps": 5, "warmup": 1}}
_LONGEST_S = 12.0
"""Approximate seconds of the longest job, from the start of its process."""


class LaunchRecord(JobRecord):
    """Account whose runs are launches on the cluster; each attempt of a job has a folder that outlives the service."""

    def starts(self) -> Counter[str]:
        """How often each job was launched on the cluster; it should be once, whatever happened to the service."""
        return Counter(_job(folder) for folder in self._folders())

    def num_repeated(self) -> int:
        """Always 0: every repeated launch counts in ``num_twice``."""
        return 0

    def num_twice(self) -> int:
        """Number of launches after a job's first, and of concurrent runs of a job.

        A run without an end mark counts as still running.
        """
        spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for folder in self._folders():
            claim, end = folder.path / "claim", folder.path / "ended-0.json"
            if claim.exists():
                spans[_job(folder)].append(
                    (claim.stat().st_mtime, end.stat().st_mtime if end.exists() else time.time())
                )
        ordered = {job: sorted(each) for job, each in spans.items()}
        beside = sum(other[0] < one[1] for each in ordered.values() for one, other in zip(each, each[1:], strict=False))
        starts = self.starts()
        return sum(starts[job] - 1 for job in self.accepted if starts[job]) + beside

    def _folders(self) -> list[JobFolder]:
        return [JobFolder(self.runs, path.parent.name) for path in self.runs.glob("*/spec.json")]


def _job(folder: JobFolder) -> str:
    return folder.key.rpartition("-")[0]


def real_work(folder: Path, points: Sequence[tuple[str, str]], kills: int, seed: int) -> Found:
    """Die at each ``(kind, point)`` with a job of that kind running, then at random times.

    Each restart also continues the jobs of earlier processes.
    """
    bodies, dice = Bodies(folder, None, measured=True), random.Random(seed)
    account, reached = LaunchRecord(folder / "data" / "launches"), 0

    def start(**dying: object) -> Process:
        return Process(folder, "real", launcher="local", max_attempts=1000, **dying)

    def post(process: Process, kind: str) -> None:
        path, body = bodies.of(kind)
        account.post(process.url, kind, path, {**body, **_EFFORT[kind]})

    for kind, point in points:
        process = start(testing=1, crash_at=f"{kind}:{point}")
        if process.wait_ready():
            post(process, kind)
        reached += process.wait(MAX_CRASH_WAIT_S)
        process.end()
    for _ in range(kills):
        process = start()
        if process.wait_ready():
            post(process, dice.choice(KINDS))
            process.wait(dice.uniform(0.0, _LONGEST_S))
        process.end()
    process = start()
    try:
        if not process.wait_ready():
            raise RuntimeError("".join(process.log))
        states = account.settle(process.url)
        taught, trials = _num_trials_learned(process.url)
    finally:
        process.end()
    started = sum(count for job, count in account.starts().items() if job in states)
    summary = account.summary(states, reached + kills)
    summary["twice"] += max(0, taught - trials)
    summary["lost"] += max(0, trials - taught)
    counted = {"started": started, "taught": taught, "trials": trials, "points": len(points)}
    return {**summary, **counted, "failures": unsuccessful_jobs(states)}


def _num_trials_learned(url: str) -> tuple[int, int]:
    """Number of trials that corrected the calibration, which each should once, and number of successful trials."""
    with httpx.Client(base_url=url, timeout=60) as client:
        versions = _every(client, "/v1/calibrations")
        trials = [each for each in _every(client, "/v1/trials") if each["job"]["state"] == "succeeded"]
    return max((each["num_trials"] for each in versions), default=0), len(trials)


def _every(client: httpx.Client, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = client.get(path, params={"limit": 100, **({"cursor": cursor} if cursor else {})}).json()
        found += page["items"]
        if (cursor := page["next_cursor"]) is None:
            return found
