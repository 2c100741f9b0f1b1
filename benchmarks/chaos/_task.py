"""Task of every job in these rows: a separate process, like a rank, that records its begin and end."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from autosbp.service.jobs._base import CancelledError, TaskContext

_RANK = """
import os, sys, time
def note(word):
    with open(os.environ["CHAOS_RUNS"], "a") as file:
        file.write(f"{word} {' '.join(sys.argv[1:])} {time.monotonic()}\\n")
note("begin")
time.sleep(float(os.environ["CHAOS_RUN_S"]))
note("end")
"""


def run(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Start a process that records its begin and end, and wait for it."""
    rank = subprocess.Popen(
        [sys.executable, "-S", "-c", _RANK, inputs["kind"], inputs["job"], str(inputs["attempt"])],
        start_new_session=True,
    )
    while True:
        try:
            status = rank.wait(0.1)
        except subprocess.TimeoutExpired:
            if not context.progress(None, "running"):
                rank.kill()
                rank.wait()
                raise CancelledError from None
            continue
        if status != 0:
            raise RuntimeError(f"the rank ended with status {status}")
        return {"attempt": inputs["attempt"]}
