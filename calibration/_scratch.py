"""The folder of a run for which nobody named one: the same run finds it again, and a later one removes what is old.

A run that failed tells its folder, and one that was killed tells nothing, so neither may be removed by the next; nor may
they pile up (``autosbp.scratch``). One that is older than ``KEPT_S`` is not continued: machines change.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autosbp.errors import InputError
from autosbp.scratch import KEPT_S, changed_s, hold, new_folder, remove_old
from calibration._launch import was_asked
from calibration._request import Request
from calibration._results import read_results

PREFIX = "autosbp-calibration-"


@contextmanager
def scratch(request: Request) -> Iterator[Path]:
    """The temporary folder of a run of ``request``: that of the same one, begun within ``KEPT_S`` and not at an end, else a
    new one. It is removed with the block, but for an exception that leaves results. Others' that are older are removed, too.
    """
    held, folder = _begun_before(request) or new_folder(PREFIX)
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
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"), key=changed_s, reverse=True):
        if found is None and (held := hold(folder)) is not None:
            if _goes_on(folder, request):
                found = held, folder
                continue
            os.close(held)
        remove_old(folder)
    return found


def _goes_on(folder: Path, request: Request) -> bool:
    with suppress(OSError, InputError):
        young = time.time() - changed_s(folder) <= KEPT_S
        return (
            young and was_asked(request, folder / "request.json") and not read_results(folder / "results.jsonl").taken
        )
    return False
