"""Runs a rank's module as ``__main__`` and records when and why it fails.

    python -m autosbp.testing.emulated._rank FOLDER MODULE ARGUMENTS...

When one rank fails, its peers fail too, with errors about closed connections; the times show which error was first. A
rank kills itself when the process named by ``AUTOSBP_OWNER`` has ended, because a killed owner cannot end its ranks.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

from autosbp.launch.local import OWNER_VARIABLE
from autosbp.testing.emulated._rank_errors import write_error
from autosbp.utils.processes import bind_to_cores, start_ticks

_LOOK_S = 1.0


def main(folder: str, module: str, *arguments: str) -> None:
    sys.argv = [module, *arguments]
    if OWNER_VARIABLE in os.environ:
        threading.Thread(target=_end_with, args=(int(os.environ.pop(OWNER_VARIABLE)),), daemon=True).start()
    bind_to_cores(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))  # all nodes are on one machine
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except (Exception, SystemExit) as error:
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            write_error(Path(folder), int(os.environ["RANK"]), error)
        raise


def _end_with(owner: int) -> None:
    began = start_ticks(owner)
    while began is not None and start_ticks(owner) == began:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
