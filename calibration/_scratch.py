"""The folder of a run for which nobody named one: the same run finds it again, and a later one removes what is old.

A run that failed tells its folder, and one that was killed tells nothing, so neither may be removed by the next; nor may
they pile up. Whoever uses a folder holds a lock on it, which ends with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autosbp.errors import InputError
from calibration._launch import was_asked
from calibration._request import Request
from calibration._results import read_results

PREFIX = "autosbp-calibration-"
KEPT_S = 86400.0
"""How long a run that did not end can be continued, since its last result: machines change."""


@contextmanager
def scratch(request: Request) -> Iterator[Path]:
    """The temporary folder of a run of ``request``: that of the same one, begun within ``KEPT_S`` and not at an end, else a
    new one. It is removed with the block, but for an exception that leaves results. Others' that are older are removed, too.
    """
    held, folder = _begun_before(request) or _new()
    try:
        yield folder
    except BaseException as error:
        with suppress(OSError, InputError):
            if isinstance(error, InputError) and not read_results(folder / "results.jsonl").made:
                shutil.rmtree(folder)
        raise
    else:
        shutil.rmtree(folder)
    finally:
        os.close(held)


def _begun_before(request: Request) -> tuple[int, Path] | None:
    """The newest folder that this user has of the same request, with the lock on it."""
    found: tuple[int, Path] | None = None
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"), key=_changed_s, reverse=True):
        held = _held(folder)
        if held is None:
            continue
        if found is None and _goes_on(folder, request):
            found = held, folder
            continue
        if time.time() - _changed_s(folder) > KEPT_S:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(held)
    return found


def _new() -> tuple[int, Path]:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    held = _held(folder)
    assert held is not None, "nobody else knows it"
    return held, folder


def _held(folder: Path) -> int | None:
    """The lock on a folder that is this user's, and that nobody uses."""
    with suppress(OSError):
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(held).st_uid == os.geteuid():
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return held
        except OSError:
            os.close(held)
            raise
        os.close(held)
    return None


def _goes_on(folder: Path, request: Request) -> bool:
    with suppress(OSError, InputError):
        young = time.time() - _changed_s(folder) <= KEPT_S
        return (
            young and was_asked(request, folder / "request.json") and not read_results(folder / "results.jsonl").taken
        )
    return False


def _changed_s(folder: Path) -> float:
    """When the last result came, else when the folder was made; 0 for one that is gone."""
    for path in (folder / "results.jsonl", folder):
        with suppress(OSError):
            return path.stat().st_mtime
    return 0.0
