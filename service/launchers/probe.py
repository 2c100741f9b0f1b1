"""An entry point that does as it is told, for trying a launcher: ``python -m service.launchers.probe [STEP]...``

Steps: ``say=TEXT``, ``sleep=SECONDS``, ``count=FILE`` (add a line with the node's number), ``tell=NAME`` (print an
environment variable), ``fail=NODE`` (on that node, exit with 7), ``exit=CODE``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def main(steps: Sequence[str]) -> int:
    """Do the steps in turn."""
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
        elif name == "fail":
            if value == node:
                return 7
        else:
            return int(value)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
