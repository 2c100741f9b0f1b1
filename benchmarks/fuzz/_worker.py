"""Process that reads inputs: ``python -m benchmarks.fuzz._worker MODULE TARGET SEED FIRST COUNT BYTES``.

TARGET is one of the ``TARGETS`` of MODULE. The process reports on standard output before and after each input, so that
its parent knows which input killed it. It has BYTES of private memory: an input that needs more must be refused like
any other bad input.
"""

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
"""Memory of the process that is not private: libraries, mapped from files."""
_MOST_LETTERS = 4000
"""Maximum length of an error message; a longer one repeats the input instead of describing the error."""


def generator(name: str, seed: int, number: int) -> random.Random:
    """Random generator of one input."""
    return random.Random(f"{name} {seed} {number}")


def main() -> None:
    """Read the inputs."""
    module, name, seed, first, count, most_bytes = *sys.argv[1:3], *map(int, sys.argv[3:7])
    target: Target = importlib.import_module(module).TARGETS[name]
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes - _SHARED_BYTES,) * 2)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    say, sys.stdout = sys.stdout, sys.stderr  # output of libraries must not reach the parent
    for number in range(first, first + count):
        begun_s = _cpu_s()
        print(json.dumps({"begins": number, "cpu_s": begun_s}), file=say, flush=True)
        found = _outcome(target, generator(name, seed, number))
        peak = max(_peak_bytes(), 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
        used_s = _cpu_s() - begun_s
        print(json.dumps({"ends": number, "cpu_s": used_s, "peak_bytes": peak, **found}), file=say, flush=True)


def _peak_bytes() -> int:
    """Peak memory of this process alone: ``ru_maxrss`` includes that of its parent at the fork."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def _cpu_s() -> float:
    """Processor seconds of this process and its ended children."""
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
