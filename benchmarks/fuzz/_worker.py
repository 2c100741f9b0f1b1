"""The process in which inputs are read: ``python -m benchmarks.fuzz._worker MODULE TARGET SEED FIRST COUNT BYTES``, with one
of the ``TARGETS`` of a module. Before and after each input it says so, on standard output, so that whoever watches knows which
one it did not survive. It has so many bytes of private memory: what needs more has to be refused, as anything else."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import random
import resource
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from autosbp.errors import AutosbpError, InputError
from benchmarks.fuzz._targets import Target

_SHARED_BYTES = 160 * 2**20
"""Of the process that are not private: libraries, as files in memory."""
_MOST_LETTERS = 4000
"""Of a message; a longer one holds what was sent, not what is wrong with it."""


def generator(name: str, seed: int, number: int) -> random.Random:
    """The random generator of one input."""
    return random.Random(f"{name} {seed} {number}")


def main() -> None:
    """Read the inputs."""
    module, name, seed, first, count, most_bytes = *sys.argv[1:3], *map(int, sys.argv[3:7])
    target: Target = importlib.import_module(module).TARGETS[name]
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes - _SHARED_BYTES,) * 2)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    say, sys.stdout = sys.stdout, sys.stderr  # what libraries print is not for who watches
    for number in range(first, first + count):
        begun_s = _cpu_s()
        print(json.dumps({"begins": number, "cpu_s": begun_s}), file=say, flush=True)
        found = _outcome(target, generator(name, seed, number))
        peak = max(_peak_bytes(), 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
        used_s = _cpu_s() - begun_s
        print(json.dumps({"ends": number, "cpu_s": used_s, "peak_bytes": peak, **found}), file=say, flush=True)


def _peak_bytes() -> int:
    """Of this process alone: ``ru_maxrss`` begins with what the one that started it had."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def _cpu_s() -> float:
    """Of this process and those that it has started and that have ended."""
    return sum(os.times()[:4])


def _outcome(target: Target, rng: random.Random) -> dict[str, Any]:
    data = target.make(rng)
    try:
        target.read(data, rng)
    except AutosbpError as error:
        if len(str(error)) > _MOST_LETTERS or (isinstance(error, InputError) and not error.field):
            return {"outcome": "unclear", "error": str(error)[:_MOST_LETTERS], "text": _shown(data)}
        return {"outcome": "refused", "error": type(error).__name__}
    except Exception as error:
        trace = traceback.format_exception(error)
        return {"outcome": "crash", "error": "".join(trace)[-_MOST_LETTERS:], "text": _shown(data)}
    return {"outcome": "accepted"}


def _shown(data: bytes) -> str:
    return data[:_MOST_LETTERS].decode(errors="backslashreplace")


if __name__ == "__main__":
    main()
