"""A scripted entry point for testing launchers: ``python -m autosbp.service.launchers.probe_entry [STEP]...``

Steps: ``say=TEXT``, ``sleep=SECONDS``, ``count=FILE`` (append a line with the node's number), ``tell=NAME`` (print an
environment variable), ``show=FILE`` (print a file), ``flood=BYTES`` (print that many bytes), ``fail=NODE`` (exit with 7
on that node), ``exit=CODE``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_LINE_BYTES = 64


def main(steps: Sequence[str]) -> int:
    """Run the steps in order and return the exit code."""
    node = os.environ["AUTOSBP_NODE"]
    for step in steps:
        name, _, value = step.partition("=")
        if name == "say":
            sys.stdout.write(f"node {node}: {value}\n")
            sys.stdout.flush()
        elif name == "sleep":
            time.sleep(float(value))
        elif name == "count":
            with Path(value).open("a") as file:
                file.write(f"{node}\n")
        elif name == "tell":
            sys.stdout.write(f"{value}={os.environ.get(value, '')}\n")
        elif name == "show":
            sys.stdout.write(_shown(Path(value)))
        elif name == "flood":
            for at in range(int(value) // _LINE_BYTES):
                sys.stdout.write(f"{at:{_LINE_BYTES - 1}}\n")
        elif name == "fail":
            if value == node:
                return 7
        else:
            return int(value)
    return 0


def _shown(path: Path) -> str:
    try:
        return path.read_text(errors="replace").replace("\0", "\n") + "\n"
    except OSError as error:
        return f"{path}: {error.strerror}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
