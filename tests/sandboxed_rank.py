"""A rank that tries what it must not be able to do, and says how that went: ``python -m tests.sandboxed_rank ASKED.json``."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path


def main(path: str) -> None:
    asked = json.loads(Path(path).read_text())
    if "flood" in asked:
        sys.stdout.write("the first line\n")
        for _ in range(asked["flood"] // 1000):
            sys.stdout.write("x" * 999 + "\n")
        sys.stdout.write("the last line\n")
        return
    if "hang" in asked:
        Path(asked["told"]).write_text("up")
        time.sleep(600)
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    found = {
        "environ": Path("/proc/self/environ").read_bytes().decode().split("\0"),
        "no_new_privileges": status["NoNewPrivs"].strip(),
        "capabilities": int(status["CapEff"].strip(), 16),
        "user": os.getuid(),
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
        "limits": {name: resource.getrlimit(getattr(resource, name))[1] for name in asked["limits"]},
        "read": {name: tried(Path(name).read_text) for name in asked["read"]},
        "write": {name: tried(lambda name=name: Path(name).write_text("broken")) for name in asked["write"]},  # type: ignore[misc]
        "others": [each.name for each in Path("/proc").glob("[0-9]*") if words(each) & set(asked["words"])],
        "connected": tried(lambda: socket.create_connection(("127.0.0.1", asked["port"]), 5).close()),
        "temporary": os.environ["TMPDIR"],
        "home": os.environ["HOME"],
    }
    Path(os.environ["TMPDIR"], "mine").write_text("")
    Path(asked["told"]).write_text(json.dumps(found))


def tried(call: Callable[[], object]) -> str:
    try:
        call()
    except OSError as error:
        return error.strerror or str(error)
    return "done"


def words(process: Path) -> set[str]:
    try:
        return set((process / "environ").read_bytes().decode(errors="replace").split("\0"))
    except OSError:
        return set()


if __name__ == "__main__":
    main(sys.argv[1])
