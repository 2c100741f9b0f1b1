"""A stand-in for nccl-tests' programs, which need GPUs: replays rows of a real log, as text and, with ``-J``, as JSON.

Installed under each program's name by ``install``; the behaviour is a word in a file beside it. What it was called with
is appended to ``calls.jsonl`` there.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from pathlib import Path

LOG = Path(__file__).parent / "data" / "new_all_reduce_8gpu.txt"
PROGRAMS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
BUS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}
HEADER = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"


def install(folder: Path, behaviour: str = "json") -> None:
    """Programs in ``folder`` and launchers in ``folder/launchers``; ``behaviour`` is one of those of ``main``."""
    (folder / "launchers").mkdir(parents=True, exist_ok=True)
    (folder / "behaviour").write_text(behaviour)
    for path in [folder / f"{tool}_perf" for tool in PROGRAMS] + [folder / "launchers" / n for n in ("mpirun", "srun")]:
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {path} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


def main() -> int:
    here, arguments = Path(sys.argv[1]), sys.argv[2:]
    if here.parent.name == "launchers":
        program = next(at for at, word in enumerate(arguments) if word.endswith("_perf"))
        ranks = next(int(word.rpartition("=")[2]) for word in arguments if word.rpartition("=")[2].isdigit())
        os.environ["FAKE_RANKS"] = str(ranks)
        with (here.parent.parent / "launched.jsonl").open("a") as file:
            file.write(json.dumps([here.name, *arguments[:program]]) + "\n")
        os.execv(arguments[program], arguments[program:])  # noqa: S606
    behaviour = (here.parent / "behaviour").read_text()
    if "-h" in arguments:
        sys.stdout.write("USAGE: x\n" + ("[-J,--output_file <file>]\n" if behaviour.startswith("json") else ""))
        return 1
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    with (here.parent / "calls.jsonl").open("a") as file:
        file.write(json.dumps({"tool": here.name, "split": os.environ.get("NCCL_TESTS_SPLIT", ""), **options}) + "\n")
    if behaviour == "hang":
        time.sleep(600)
    if behaviour == "fail":
        sys.stdout.write("Test NCCL failure common.cu:958 'unhandled cuda error'\n")
        return 3
    split = os.environ.get("NCCL_TESTS_SPLIT", "").split()
    ranks = int(os.environ.get("FAKE_RANKS", options["-g"]))
    if split:
        ranks = int(split[1]) if split[0] == "DIV" else ranks // int(split[1])
    tool = here.name.removesuffix("_perf")
    bus = BUS[tool] * (ranks - 1) / ranks if tool in BUS else 1.0
    rows = [line.split() for line in LOG.read_text().splitlines() if line.strip() and not line.startswith("#")]
    if behaviour.endswith("truncated"):
        rows = rows[:4]
    if behaviour.endswith("wrong"):
        rows[3][8] = "7"
    for row in rows:
        for at in (5, 9):
            row[at + 2] = f"{float(row[at + 1]) * bus:.2f}"
    write(tool, rows, options, behaviour)
    return 0


def write(tool: str, rows: list[list[str]], options: dict[str, str], behaviour: str) -> None:
    sys.stdout.write(f"# Collective test starting: {tool}_perf\n# nThread 1 warmup iters: 5 iters: 20 agg iters: 1\n")
    sys.stdout.write(HEADER + "".join("  ".join(row) + "\n" for row in rows))
    if not behaviour.endswith("truncated"):
        sys.stdout.write("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 92.1\n")
    if "-J" in options:
        results = [
            {"size": int(row[0]), "count": int(row[1]), "type": row[2], "redop": row[3], "root": row[4],
             **{name: {"time": float(row[at]), "alg_bw": float(row[at + 1]), "bus_bw": float(row[at + 2]),
                       "nwrong": float(row[at + 3])} for name, at in (("out_of_place", 5), ("in_place", 9))}}
            for row in rows
        ]  # fmt: skip
        document = {"version": 3, "args": [f"./build/{tool}_perf"], "config": {"iterations": 20}, "results": results}
        if not behaviour.endswith("truncated"):
            document |= {"out_of_bounds": {"count": 0, "okay": "true"}, "errors": [""]}
        Path(options["-J"]).write_text(json.dumps(document))


if __name__ == "__main__":
    sys.exit(main())
