"""The service under attack: ``python -m benchmarks.attack [--only WORD] [--check] [--json] [-o FILE]``.

A real service with API keys is attacked by an unauthenticated client and by one of its two tenants, on the same
machine, with ten times the load that broke an earlier release. Targets in each case: the process uses less than 512 MiB
above its idle memory, 99 of 100 responses of /healthz arrive within 200 ms, no response is 5xx (503 with Retry-After is
a legitimate refusal when there is no room for another body), and the data folder grows by less than 64 MiB.
``_cases.py`` says what else must hold in each case. Attackers run at a lower priority than the service, since in
practice they would have their own processors.

With ``--check`` it exits with 1 if a target is missed. Needs the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.attack._cases import CASES, Case
from benchmarks.attack._client import Answers
from benchmarks.attack._target import measure_service, run_service

AIMS = {
    "memory_above_idle_mib": 512.0,
    "healthz_p99_ms": 200.0,
    "healthz_unanswered": 0.5,
    "errors": 0.5,
    "disk_growth_mib": 64.0,
}
"""Upper limits of the measured numbers."""
_WIDTHS = (20, 34, 8, 8, 14, 12, 8, 10, 9)
_NICE = 10


def main() -> int:
    """Run the attacks and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="cases with this in their name; all of them otherwise")
    parser.add_argument("--check", action="store_true", help="exit with 1 where an aim is missed")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("-o", "--output", type=Path, help="write the result into a file")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _print("attack", "answers", "refused", "cut off", "memory, MiB", "p99, ms", "5xx", "disk, MiB", "held")
    rows = {name: run(name, case) for name, case in CASES.items() if (arguments.only or "") in name}
    found = {
        "command": " ".join(["python -m benchmarks.attack", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}",
        "aims": {name: int(most) for name, most in AIMS.items()},
        "rows": rows,
        "passed": all(row["passed"] for row in rows.values()),
    }
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(found))
    return 1 if arguments.check and not found["passed"] else 0


def run(name: str, case: Case) -> dict[str, Any]:
    """Start a service, attack it and print the outcome; returns a row of the result."""
    with tempfile.TemporaryDirectory(prefix="autosbp-attack-") as folder, run_service(Path(folder)) as target:
        time.sleep(1.0)
        answers, begun_s = Answers(), time.monotonic()
        with measure_service(target) as seen, _lower_priority():
            held = uvloop.run(_attack(case, target, answers))
    numbers = {**seen.to_dict(), "errors": answers.errors}
    missed = [aim for aim, most in AIMS.items() if not numbers[aim] < most]
    row = {
        "answers": {str(status): count for status, count in sorted(answers.statuses.items())},
        "refused_503": answers.refused,
        "cut_off": answers.cut_off,
        **numbers,
        "seconds": round(time.monotonic() - begun_s, 1),
        "notes": answers.notes,
        "held": held,
        "missed": missed,
        "passed": held and not missed,
    }
    said = ", ".join(f"{count} x {status}" for status, count in row["answers"].items())
    memory, p99 = row["memory_above_idle_mib"], row["healthz_p99_ms"]
    verdict = "yes" if row["passed"] else "no"
    _print(name, said, answers.refused, answers.cut_off, memory, p99, row["errors"], row["disk_growth_mib"], verdict)
    for note in (*answers.notes, *(f"missed: {aim}" for aim in missed)):
        print(f"  {note}", flush=True)
    return row


@contextmanager
def _lower_priority() -> Iterator[None]:
    """Lower this process's priority; skipped unless root, because only root can restore it."""
    if os.geteuid() != 0:
        yield
        return
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, before + _NICE)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


async def _attack(case: Case, target: Any, answers: Answers) -> bool:
    return await case(target, answers)


def _print(*cells: object) -> None:
    print("".join(f"{cell!s:{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
