"""The service under kills: ``python -m benchmarks.chaos [--long] [--kills N] [--stops N] [--seed S] [--only ROW] [--json]
[-o FILE]``.

Jobs of three kinds (calibrate, search, trial) are posted while the service dies: at every named moment of every kind
(``service.jobs._crash``), of the service and of a worker on PostgreSQL; at random moments, also as one of two workers; and
while PostgreSQL stops at once, as in a crash. In the row of real work the service measures, searches and trains on ranks
that outlive it. In the others, whose kills are many, the tasks are stand-ins that start a process, as a trial starts ranks,
which writes down when it begins and ends; everything around them is the service itself. Counted are accepted jobs, and of
these:

- lost: not stored, or not ended when all is well again;
- twice: ran to the end more than once, or beside an earlier run of their own;
- stuck: not ended 60 s after the last strike;

and answers of 5xx of the service; while PostgreSQL is away 503 is the right one, so those are beside the others. Exits
with 1 where a number that should be 0 is not. Needs the repository and its development extra (a PostgreSQL of its own).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.chaos import real, scenarios
from tests.service.postgres import Postgres, programs

_COLUMNS = ("kills", "accepted", "succeeded", "lost", "failed", "twice", "stuck", "5xx", "503", "slowest_s", "seconds")
_ROWS = {
    "moments": "every named moment",
    "kills": "random kills",
    "worker-moments": "moments of a worker",
    "worker-kills": "kills of a worker",
    "database-stops": "stops of PostgreSQL",
    "real-work": "real measurements and trials",
}
_ZERO = ("lost", "failed", "twice", "stuck", "5xx")


def main() -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="each moment with each kind, 100 kills, 20 stops")
    parser.add_argument("--kills", type=int, help="at random moments, and of workers; 3 otherwise")
    parser.add_argument("--stops", type=int, help="of PostgreSQL; 3 otherwise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("--only", choices=_ROWS, action="append", help="a row of the table; all of them otherwise")
    parser.add_argument("-o", "--output", type=Path, help="put each row into a document when it is there")
    arguments = parser.parse_args()
    kills = arguments.kills or (100 if arguments.long else 3)
    stops = arguments.stops or (20 if arguments.long else 3)
    points = scenarios.every_point() if arguments.long else scenarios.some_points()
    results: dict[str, scenarios.Found] = {}
    print(f"{'':28}" + "".join(f"{name:>11}" for name in _COLUMNS))
    with Postgres(programs()) as server:
        strikes: dict[str, Callable[[Path], scenarios.Found]] = {
            "moments": lambda folder: scenarios.crash_points(folder, points),
            "kills": lambda folder: scenarios.random_kills(folder, kills, arguments.seed),
            "worker-moments": lambda folder: scenarios.worker_crash_points(folder, server, points),
            "worker-kills": lambda folder: scenarios.worker_kills(folder, server, kills, arguments.seed),
            "database-stops": lambda folder: scenarios.database_stops(folder, server, stops, arguments.seed),
            "real-work": lambda folder: real.real_work(folder, points, kills // 3, arguments.seed),
        }
        for name in arguments.only or _ROWS:
            results[name] = _timed(_ROWS[name], strikes[name])
            if arguments.output is not None:
                _keep(arguments.output, name, results[name])
    passed = all(one[name] == 0 for one in results.values() for name in _ZERO)
    print("nothing lost, nothing twice, nothing stuck" if passed else "a number that should be 0 is not")
    if arguments.json:
        print(json.dumps({**_circumstances(), "results": results, "passed": passed}))
    return 0 if passed else 1


def _circumstances() -> dict[str, str]:
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return {
        "command": " ".join(["python -m benchmarks.chaos", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {system}",
    }


def _keep(path: Path, name: str, found: scenarios.Found) -> None:
    document = json.loads(path.read_text()) if path.exists() else {}
    document[name] = {**_circumstances(), **found}
    path.write_text(json.dumps(document, indent=1) + "\n")


def _timed(name: str, strike: Callable[[Path], scenarios.Found]) -> scenarios.Found:
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="autosbp-chaos-") as folder:
        found = strike(Path(folder))
    found["seconds"] = round(time.monotonic() - begun_s)
    print(f"{name:28}" + "".join(f"{found[column]:>11}" for column in _COLUMNS), flush=True)
    if found["failures"]:
        print(f"  {found['failures']}")
    return found


if __name__ == "__main__":
    sys.exit(main())
