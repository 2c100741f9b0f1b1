"""The task of every job here: a process of its own, as a rank is, writes down that it begins and ends."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from service.jobs._base import CancelledError, TaskContext

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
    """Have a process of its own, as a rank is, write down that it begins and ends."""
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
