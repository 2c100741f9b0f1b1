"""Temporary folder of a run without ``workdir``: the same run finds it again, and a later run removes old ones.

The error of a failed run names its folder, and a killed run leaves one without notice. So the next run may not remove
them, but they must not pile up either (``autosbp.utils.tempdirs``). A folder older than ``KEPT_S`` is not continued,
since machines change.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autosbp.calibration._rank_launch import is_same_request
from autosbp.calibration._request import Request
from autosbp.calibration._results import read_results
from autosbp.errors import InputError
from autosbp.utils.tempdirs import KEPT_S, last_change_s, lock_folder, new_folder, remove_old

PREFIX = "autosbp-calibration-"


@contextmanager
def temporary_run_folder(request: Request) -> Iterator[Path]:
    """Temporary folder for a run of ``request``.

    It is the folder of an unfinished run of the same request younger than ``KEPT_S``, else a new one. It is removed
    when the block ends, unless an exception leaves results in it. Older folders of other runs are removed too.
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
    """This user's newest folder of the same request, with a lock held on it."""
    found: tuple[int, Path] | None = None
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"), key=last_change_s, reverse=True):
        if found is None and (held := lock_folder(folder)) is not None:
            if _can_continue(folder, request):
                found = held, folder
                continue
            os.close(held)
        remove_old(folder)
    return found


def _can_continue(folder: Path, request: Request) -> bool:
    with suppress(OSError, InputError):
        young = time.time() - last_change_s(folder) <= KEPT_S
        return (
            young
            and is_same_request(request, folder / "request.json")
            and not read_results(folder / "results.jsonl").taken
        )
    return False
