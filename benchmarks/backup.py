"""Backups under load: ``python -m benchmarks.backup [--rounds N] [--database postgresql] [--check] [--json] [-o FILE]``.

A real service handles 20 posts per second (models, searches that are cancelled, deletions) while ``autosbp admin
backup`` runs. Each backup is restored into an empty place. There it must contain every row whose response came before
the backup began and that was not deleted before it ended. All references must be intact, and a service must start on it
and become ready. With ``--check`` it exits with 1 if a round fails. Needs the repository and its development extra.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.service import documents
from tests.service.postgres import Postgres, programs
from tests.service.server import Server

_POSTS_PER_S = 20.0
_WARM_POSTS = 40


@dataclass(slots=True)
class Load:
    """Sends requests at a fixed rate until stopped.

    ``stored`` maps paths to the time of the response that created them, ``deleted`` to the time of the deletion
    request.
    """

    url: str
    stored: dict[str, float] = field(default_factory=dict)
    deleted: dict[str, float] = field(default_factory=dict)
    num_posts: int = 0
    failed: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Send requests until ``stop``."""
        choice, begun_s = random.Random(0), time.monotonic()
        with httpx.Client(base_url=self.url, timeout=60) as client:
            cluster = client.post("/v1/clusters", json={"preset": documents.CLUSTER}).json()["id"]
            while not self._stop.is_set():
                self._post(client, choice, cluster)
                self.num_posts += 1
                self._stop.wait(max(0.0, begun_s + self.num_posts / _POSTS_PER_S - time.monotonic()))

    def stop(self) -> None:
        """Stop sending."""
        self._stop.set()

    def _post(self, client: httpx.Client, choice: random.Random, cluster: str) -> None:
        kind = choice.choice(("model", "model", "search", "delete"))
        if kind == "delete" and len(self.stored) > len(self.deleted):
            path = choice.choice(sorted(self.stored.keys() - self.deleted.keys()))
            self.deleted[path] = time.monotonic()
            answer = client.delete(path, params={"cascade": True})
            if answer.status_code == 409:  # one of its jobs has not ended yet
                del self.deleted[path]
                return
            self._note(answer)
            return
        answer = client.post("/v1/models", json={**documents.graph(), "name": f"model-{self.num_posts}"})
        self._note(answer)
        model = answer.json()["id"]
        self.stored[f"/v1/models/{model}"] = time.monotonic()
        if kind == "search":
            asked = {"model_id": model, "cluster_id": cluster, "options": documents.OPTIONS}
            job = client.post("/v1/searches", json=asked)
            self._note(job)
            client.post(f"/v1/jobs/{job.json()['id']}:cancel")

    def _note(self, answer: httpx.Response) -> None:
        if answer.is_error:
            self.failed.append(
                f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:200]}"
            )


@dataclass(frozen=True, slots=True)
class Round:
    """Result of one round; ``wrong`` lists what failed."""

    posts_per_s: float
    num_expected: int
    backup_s: float
    restore_s: float
    wrong: tuple[str, ...]


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 where a backup was not restored as it should be"
    )
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("-o", "--output", type=Path, help="write the result into a file")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"rounds: {arguments.rounds} is invalid: expected at least 1")
    os.environ["PATH"] = f"{programs()}:{os.environ['PATH']}"
    with Postgres(programs()) if arguments.database == "postgresql" else nullcontext() as server:
        rounds = [_round(server) for _ in _numbered(arguments.rounds)]
    found = {
        "command": " ".join(["python -m benchmarks.backup", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}",
        "database": arguments.database,
        "rounds": [asdict(each) for each in rounds],
        "restored": sum(not each.wrong for each in rounds),
        "passed": not any(each.wrong for each in rounds),
    }
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(found))
    return 1 if arguments.check and not found["passed"] else 0


def _numbered(rounds: int) -> Iterator[int]:
    print("posts/s   rows  backup, s  restore, s  wrong")
    yield from range(rounds)


def _round(server: Postgres | None) -> Round:
    with tempfile.TemporaryDirectory(prefix="autosbp-backup-") as name:
        folder = Path(name)
        urls = [{"database_url": server.database()} if server else {} for _ in range(2)]
        found = _run_round(folder, *urls)
    print(
        f"{found.posts_per_s:7.1f} {found.num_expected:6} {found.backup_s:10.2f} {found.restore_s:11.2f}  "
        f"{'; '.join(found.wrong) or '-'}",
        flush=True,
    )
    return found


def _run_round(folder: Path, here: dict[str, str], there: dict[str, str]) -> Round:
    with Server(folder / "data", **here) as service, _under_load(service.url) as load:
        while load.num_posts < _WARM_POSTS and not load.failed:
            time.sleep(0.05)
        before, begun_s = load.num_posts, time.monotonic()
        said = _admin("backup", folder / "b.tar", folder / "data", here)
        ended_s = time.monotonic()
        time.sleep(0.2)
        rate = (load.num_posts - before) / (time.monotonic() - begun_s)
    expected = [
        path for path, at_s in load.stored.items() if at_s <= begun_s and load.deleted.get(path, float("inf")) > ended_s
    ]
    wrong = [*load.failed, *said]
    restored_s = time.monotonic()
    if not wrong:
        wrong += _admin("restore", folder / "b.tar", folder / "other", there)
    restored_s = time.monotonic() - restored_s
    if not wrong:
        with Server(folder / "other", **there) as service:
            wrong += _differences(service.url, expected)
    return Round(round(rate, 1), len(expected), ended_s - begun_s, restored_s, tuple(wrong[:5]))


@contextmanager
def _under_load(url: str) -> Iterator[Load]:
    load = Load(url)
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        yield load
    finally:
        load.stop()
        thread.join()


def _admin(command: str, backup: Path, data_dir: Path, settings: dict[str, str]) -> list[str]:
    """Run an admin command; returns its error, if any."""
    database = ["--database", settings["database_url"]] if settings else []
    program = [sys.executable, "-m", "autosbp", "admin", command, str(backup), "--data-dir", str(data_dir), *database]
    done = subprocess.run(program, capture_output=True, text=True)
    return [f"{command}: {done.stderr.strip()[-300:]}"] if done.returncode else []


def _differences(url: str, expected: list[str]) -> list[str]:
    """Errors of a restored service: not ready, expected resources missing, dangling references."""
    wrong = []
    with httpx.Client(base_url=url, timeout=60) as client:
        if client.get("/readyz").status_code != 200:
            wrong.append("not ready")
        wrong += [f"{path} is missing" for path in expected if client.get(path).status_code != 200]
        for path in _paths(client):
            if client.get(path).is_error:
                wrong.append(f"{path} is dangling")
    return wrong


def _paths(client: httpx.Client) -> Iterator[str]:
    """Paths of all listed resources, and of the graphs that searches refer to."""
    for kind in ("models", "searches", "jobs"):
        cursor: dict[str, Any] = {}
        while cursor is not None:
            page = client.get(f"/v1/{kind}", params={"limit": 200, **cursor}).json()
            for each in page["items"]:
                yield f"/v1/{kind}/{each['id']}"
                yield from [f"/v1/models/{each['model_id']}/graph"] if kind == "searches" else []
            cursor = {"cursor": page["next_cursor"]} if page["next_cursor"] else None


if __name__ == "__main__":
    sys.exit(main())
