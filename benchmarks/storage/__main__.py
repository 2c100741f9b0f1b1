"""The service while its storage fails: ``python -m benchmarks.storage [--only WORD] [--check] [--json] [-o FILE]``.

Each row is a real service whose database is locked, read-only, stopped or on a full disk, or whose disk fails; or whose
artifacts are on a disk that is full, read-only or gone. Models are posted and read before, during and after the
failure. A search accepted before the failure and one posted after it must both succeed in the same process. Correct
responses during the failure are 503, or 507 if there is no room, as a problem document with Retry-After; never 500.
With ``--check`` it exits with 1 if a row fails or could not run: disks need root, and the failing one needs a loop
device and mkfs.ext4. Needs the repository and its development extra.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.storage.scenarios import FAILURES, StorageFailure, run_failure

_WIDTHS = (36, 28, 20, 6, 58, 14, 9)
_SHOWN = 56


def main() -> int:
    """Run the rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="rows with this in their name; all of them otherwise")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a row is not as it should be")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("-o", "--output", type=Path, help="write the result into a file")
    arguments = parser.parse_args()
    _print("what failed", "posts", "reads", "500s", "/readyz", "recovered, s", "seconds")
    rows = {name: _row(name, way) for name, way in FAILURES.items() if (arguments.only or "") in name}
    found = {
        "command": " ".join(["python -m benchmarks.storage", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}",
        "rows": rows,
        "passed": all(row.get("passed", False) for row in rows.values()),
    }
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(found))
    return 1 if arguments.check and not found["passed"] else 0


def _row(name: str, way: StorageFailure) -> dict[str, Any]:
    if lacks := way.lacks():
        print(f"{name:36}not run: needs {', '.join(lacks)}", flush=True)
        return {"missing": lacks}
    with tempfile.TemporaryDirectory(prefix="autosbp-storage-") as folder:
        found = run_failure(way, Path(folder))
    wrong = sum(counts.get("500", 0) for counts in (found.posts, found.reads))
    back = "cannot" if not found.can_end else "no" if found.recovered_s is None else f"{found.recovered_s:.2f}"
    _print(name, _told(found.posts), _told(found.reads), wrong, found.ready[:_SHOWN], back, found.seconds)
    for odd in found.odd:
        print(f"  {odd}")
    return {**found.to_dict(), "passed": not found.bad(way)}


def _told(counts: Any) -> str:
    return ", ".join(f"{number} x {status}" for status, number in sorted(counts.items()))


def _print(*cells: object) -> None:
    print("".join(f"{cell!s:{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
