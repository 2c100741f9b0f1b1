"""The service under kills: ``python -m benchmarks.chaos [--long] [--kills N] [--stops N] [--seed S] [OPTIONS]``.

Other options: ``--only ROW``, ``--json``, and ``-o FILE``, which adds each row to a document.

Jobs of three kinds (calibrate, search, trial) are posted while processes die: at every named crash point of every kind
(``autosbp.service.jobs._fault_injection``), of the service and of a worker on PostgreSQL; at random times, also one of two
workers; and while PostgreSQL stops abruptly, as in a crash. In the row of real work the service measures, searches and
trains on ranks that outlive it. In the other rows, which have many kills, the tasks are stand-ins: each starts a
process, as a trial starts ranks, which records its begin and end. Everything around them is the real service. The
benchmark counts accepted jobs, and of these:

- lost: not stored, or not ended after everything has recovered;
- twice: ran again after an outcome was stored, or concurrently with an earlier run;
- repeated: ran to the end again, because the first run's process was killed before it stored its outcome (no fault);
- stuck: not ended 60 s after the last failure;

and the service's 5xx responses. While PostgreSQL is down, 503 is correct, so those have a column of their own. Exits
with 1 if a number that should be 0 is not. Needs the repository and its development extra (a PostgreSQL of its own).
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

_COLUMNS = (
    "kills",
    "accepted",
    "succeeded",
    "lost",
    "failed",
    "twice",
    "repeated",
    "stuck",
    "5xx",
    "503",
    "slowest_s",
    "seconds",
)
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
    """Run the rows and print the table."""
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
