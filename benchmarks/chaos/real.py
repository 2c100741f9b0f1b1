"""Kills of the service while it does what it is there for: measures a cluster, searches, trains, learns from it. Ranks
outlive it."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.chaos._fleet import Account, Process
from benchmarks.chaos.scenarios import KINDS, REACH_S, Bodies, Found, bad
from service.launchers._folder import JobFolder

_EFFORT: dict[str, dict[str, Any]] = {"calibrate": {"point_s": 0.02}, "search": {}, "trial": {"steps": 5, "warmup": 1}}
_LONGEST_S = 12.0
"""About what the longest of the jobs takes, from the start of its process on."""


class Launched(Account):
    """Runs are what was started on the cluster: a job's attempts have folders of their own, which outlive the service."""

    def ends(self) -> Counter[str]:
        """How often each job was started on the cluster, which should be once, whatever became of it."""
        return Counter(_job(folder) for folder in self._folders())

    def overlaps(self) -> list[str]:
        """See ``Account``. A run that has left no word may go on for ever."""
        spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for folder in self._folders():
            claim, end = folder.path / "claim", folder.path / "ended-0.json"
            if claim.exists():
                spans[_job(folder)].append(
                    (claim.stat().st_mtime, end.stat().st_mtime if end.exists() else time.time())
                )
        ordered = {job: sorted(each) for job, each in spans.items()}
        return [
            job
            for job, each in ordered.items()
            for one, other in zip(each, each[1:], strict=False)
            if other[0] < one[1]
        ]

    def _folders(self) -> list[JobFolder]:
        return [JobFolder(self.runs, path.parent.name) for path in self.runs.glob("*/spec.json")]


def _job(folder: JobFolder) -> str:
    return folder.key.rpartition("-")[0]


def real_work(folder: Path, points: Sequence[tuple[str, str]], kills: int, seed: int) -> Found:
    """Die at each ``(kind, point)`` in turn with a job of the kind at work, then at random moments; each start has the jobs
    of those before it, too."""
    bodies, dice = Bodies(folder, None, measured=True), random.Random(seed)
    account, reached = Launched(folder / "data" / "launches"), 0

    def start(**dying: object) -> Process:
        return Process(folder, "real", launcher="local", max_attempts=1000, **dying)

    def post(process: Process, kind: str) -> None:
        path, body = bodies.of(kind)
        account.post(process.url, kind, path, {**body, **_EFFORT[kind]})

    for kind, point in points:
        process = start(testing=1, crash_at=f"{kind}:{point}")
        if process.wait_ready():
            post(process, kind)
        reached += process.wait(REACH_S)
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
        taught, trials = _taught(process.url)
    finally:
        process.end()
    started = sum(count for job, count in account.ends().items() if job in states)
    summary = account.summary(states, reached + kills)
    summary["twice"] += max(0, taught - trials)
    summary["lost"] += max(0, trials - taught)
    counted = {"started": started, "taught": taught, "trials": trials, "points": len(points)}
    return {**summary, **counted, "failures": bad(states)}


def _taught(url: str) -> tuple[int, int]:
    """How many trials taught the calibration, each of which should once, and how many succeeded."""
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
