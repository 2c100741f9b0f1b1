"""What nobody would send: ``python -m benchmarks.fuzz [--seed N] [--cases N] [--check] [--json]``.

Requests that schemathesis makes up from the OpenAPI document, to the service on SQLite: ``--cases`` of each route at random,
beside those that cover the document's schemas. With ``--check`` it exits with 1 where anything is found; every finding is
printed with what shows it.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fuzz._server import served
from benchmarks.fuzz.http import attack


def main() -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="another one each time by default")
    parser.add_argument("--cases", type=int, default=100, help="random requests of each route")
    parser.add_argument("--check", action="store_true", help="exit with 1 where anything is found")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    arguments = parser.parse_args()
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory(prefix="autosbp-fuzz-") as folder:
        requests = _requests(Path(folder), seed, arguments.cases)
    found = {"seed": seed, "requests": requests, "passed": not (requests["failures"] or requests["errors"])}
    print(f"seed {seed}")
    print(f"{requests['cases']} requests in {requests['seconds']:.0f} s: {len(requests['failures'])} kinds of failures")
    if arguments.json:
        print(json.dumps(found))
    return 1 if arguments.check and not found["passed"] else 0


def _requests(folder: Path, seed: int, num_cases: int) -> dict[str, Any]:
    with served(folder) as service:
        found = attack(service, folder, seed, num_cases)
    output = found.pop("output")
    if found["failures"] or found["errors"]:
        print(output)
    return found


if __name__ == "__main__":
    sys.exit(main())
