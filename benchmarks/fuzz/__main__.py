"""Fuzzing: ``python -m benchmarks.fuzz [--seed N] [--cases N] [--inputs N] [--only KIND] [--check] [--json] [-o FILE]``.

- Requests that schemathesis generates from the OpenAPI document, sent to the service on SQLite: ``--cases`` random ones
  per route, in addition to those that cover the document's schemas.
- Mutated graphs, clusters, calibrations, cluster files, plans, ONNX files and Hugging Face configurations: ``--inputs``
  in total, with as many kinds in parallel as there are processors.

With ``--check`` it exits with 1 if anything is found; every finding is printed with the input that causes it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.fuzz import documents, http
from benchmarks.fuzz._server import run_service
from benchmarks.fuzz._targets import TARGETS

_LONG = sum(target.num_inputs for target in TARGETS.values())


def main() -> int:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="another one each time by default")
    parser.add_argument("--cases", type=int, default=100, help="random requests of each route; 0: none at all")
    parser.add_argument("--inputs", type=int, default=2000, help=f"changed documents; {_LONG} for the long form")
    parser.add_argument("--only", choices=TARGETS, action="append", help="documents of this kind; of all otherwise")
    parser.add_argument("--check", action="store_true", help="exit with 1 where anything is found")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument(
        "-o", "--output", type=Path, help="write the result into a file, beside what it has of the other kind"
    )
    arguments = parser.parse_args()
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}")
    requests = _requests(seed, arguments.cases) if arguments.cases else None
    begun_s = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        names = arguments.only or [*TARGETS] if arguments.inputs else []
        changed = dict(zip(names, pool.map(lambda name: _changed(name, seed, arguments.inputs), names), strict=True))
    clean = requests is None or not (requests["failures"] or requests["errors"])
    found = {
        **_circumstances(),
        "seed": seed,
        "requests": requests,
        "documents": changed,
        "inputs": sum(one["inputs"] for one in changed.values()),
        "peak_bytes": max((one["peak_bytes"] for one in changed.values()), default=0),
        "seconds": round(time.monotonic() - begun_s, 1),
        "passed": clean and not any(one["findings"] for one in changed.values()),
    }
    if arguments.output is not None:
        earlier = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
        arguments.output.write_text(json.dumps(joined(found, earlier), indent=1) + "\n")
    if arguments.json:
        print(json.dumps(found))
    return 1 if arguments.check and not found["passed"] else 0


def _circumstances() -> dict[str, str]:
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return {
        "command": " ".join(["python -m benchmarks.fuzz", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {system}",
    }


def joined(found: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Merge a run of only requests with the documents of an earlier run, or the reverse."""
    if not found["documents"] and earlier.get("documents"):
        return {**earlier, "requests": found["requests"], "passed": found["passed"] and earlier["passed"]}
    if found["requests"] is None and (kept := earlier.get("requests")):
        return {**found, "requests": kept, "passed": found["passed"] and not (kept["failures"] or kept["errors"])}
    return found


def _requests(seed: int, num_cases: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="autosbp-fuzz-") as name, run_service(Path(name)) as service:
        found = http.attack(service, Path(name), seed, num_cases)
    output = found.pop("output")
    if found["failures"] or found["errors"]:
        print(output)
    print(f"{found['cases']} requests in {found['seconds']:.0f} s: {len(found['failures'])} kinds of failures")
    for name, phase in found["phases"].items():
        answers = ", ".join(f"{number} x {kind}" for kind, number in phase.items() if kind.endswith("xx"))
        print(f"  {name}: {phase['status']}, {phase['requests']} requests, {answers}")
    return {**_circumstances(), "seed": seed, **found}


def _changed(name: str, seed: int, num_inputs: int) -> dict[str, Any]:
    found = documents.read_mutated(name, seed, -(-TARGETS[name].num_inputs * num_inputs // _LONG)).to_dict()
    for finding in found["findings"]:
        print(json.dumps(finding, indent=1))
    counts = ", ".join(f"{found[key]} {key}" for key in ("accepted", "refused", "crash", "hang", "memory", "unclear"))
    print(
        f"{found['inputs']} {name} in {found['seconds']:.0f} s: {counts}; at most {found['slowest_cpu_s']:.1f} s of processor, "
        f"{found['peak_bytes'] / 2**20:.0f} MiB"
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
