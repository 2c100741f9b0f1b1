"""Runs a rank's module as ``__main__`` and, where it fails, writes down when and why.

    python -m autosbp.testing.emulated._rank FOLDER MODULE ARGUMENTS...

When one rank fails, its peers fail too, with errors about closed connections: the times tell which error was the first.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from autosbp.processes import keep_to_cores
from autosbp.testing.emulated._rank_errors import write_error


def main(folder: str, module: str, *arguments: str) -> None:
    sys.argv = [module, *arguments]
    keep_to_cores(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))  # all nodes are on one machine
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except (Exception, SystemExit) as error:
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            write_error(Path(folder), int(os.environ["RANK"]), error)
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
