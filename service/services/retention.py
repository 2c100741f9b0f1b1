"""Files of jobs that have ended: kept for a while, and while there is room, then removed.

    DATA/trials/TRIAL   log, request and result of a trial      DATA/jobs/JOB      an outcome that is stored by now
    DATA/calibrations/JOB   those of a measurement              LAUNCHES/KEY       what a launcher and its nodes left

What they measured is in the database, and stays. A folder is removed only if its job is known here and has ended, and nothing
of it is active on the cluster, or owed to the store of artifacts. It first gets another name, which nobody looks for, so that
one that is half removed when the service dies is never taken for a whole one; the next sweep removes the rest of it.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import ColumnElement, Select, select

from service.db import Database
from service.jobs._base import FINAL
from service.launchers._base import Launcher, LauncherError
from service.models import JobRow, TrialRow, now
from service.services import artifacts
from service.settings import Settings

_log = logging.getLogger("service")
_GONE = ".removed-"
_CHUNK = 500
_READ_FOR = timedelta(hours=1)  # whoever waited for a trial reads its log
Ends = Mapping[str, datetime]


@dataclass(frozen=True, slots=True)
class _Ended:
    """The folder of a job that ended then."""

    at: datetime
    path: Path


def sweep(settings: Settings, database: Database, launcher: Launcher | None) -> list[Path]:
    """Remove what is older than ``files_days``, and then the oldest while all is more than ``files_bytes``, but nothing in the
    first hour; what was removed."""
    launches = settings.launches
    data = settings.data_dir.resolve()
    roots = (data / "trials", data / "calibrations", data / "jobs", launches)
    for root in roots:
        _finish(root)
    active, owed = _active(launcher), frozenset(artifacts.owed(settings))
    found = [
        *_ended(
            roots[0], lambda names: _ends(database, lambda ids: _of_trials(ids).where(JobRow.id.not_in(owed)), names)
        ),
        *_ended(roots[1], lambda names: _ends(database, _of_jobs, names), owed),
        *_ended(roots[2], lambda names: _ends(database, _of_jobs, names)),
        *(() if active is None else _ended(launches, lambda keys: _of_keys(database, keys, owed), active)),
    ]
    left, moment = sum(_size(root) for root in roots), now()
    removed = []
    for each in sorted(found, key=lambda one: (one.at, one.path)):
        is_old = moment - each.at > timedelta(days=settings.files_days)
        if not is_old and (left <= settings.files_bytes or moment - each.at < _READ_FOR):
            break
        num_bytes = _size(each.path)
        if _remove(each.path):
            left -= num_bytes
            removed.append(each.path)
    if removed:
        _log.info("the files of %d ended jobs are removed", len(removed))
    return removed


def _active(launcher: Launcher | None) -> frozenset[str] | None:
    """Keys that the cluster works on; None where it does not say."""
    try:
        return frozenset(() if launcher is None else launcher.active_keys())
    except LauncherError as error:
        _log.warning("old launches are not looked for: %s", error)
        return None


def _ended(root: Path, ends: Callable[[list[str]], Ends], needed: frozenset[str] = frozenset()) -> Iterable[_Ended]:
    names = [name for name in _names(root) if not name.startswith(".") and name not in needed]
    known = ends(names)
    return [_Ended(known[name], root / name) for name in names if name in known]


def _of_keys(database: Database, keys: list[str], needed: frozenset[str]) -> Ends:
    """When the job of each key (``JOB-ATTEMPT``) ended, but for jobs whose files are needed."""
    jobs = {key: key.rpartition("-")[0] for key in keys}
    ends = _ends(database, _of_jobs, sorted({*jobs.values()} - needed))
    return {key: ends[job] for key, job in jobs.items() if job in ends}


def _ends(database: Database, query: Callable[[list[str]], Select[str, datetime | None]], names: list[str]) -> Ends:
    found: dict[str, datetime] = {}
    with database.read() as session:
        for at in range(0, len(names), _CHUNK):
            found |= {name: end for name, end in session.execute(query(names[at : at + _CHUNK])) if end is not None}
    return found


def _of_jobs(ids: list[str]) -> Select[str, datetime | None]:
    return select(JobRow.id, JobRow.finished_at).where(JobRow.id.in_(ids), _has_ended())


def _of_trials(ids: list[str]) -> Select[str, datetime | None]:
    mine = (JobRow.id == TrialRow.job_id) & (JobRow.tenant == TrialRow.tenant)
    return select(TrialRow.id, JobRow.finished_at).join(JobRow, mine).where(TrialRow.id.in_(ids), _has_ended())


def _has_ended() -> ColumnElement[bool]:
    return JobRow.state.in_(FINAL)


def _remove(path: Path) -> bool:
    """Whether this process removed it; another may have been quicker."""
    gone = path.with_name(f"{_GONE}{secrets.token_hex(8)}")
    try:
        path.rename(gone)
    except FileNotFoundError:
        return False
    except OSError as error:
        _log.warning("%s cannot be removed: %s", path, error)
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return True


def _finish(root: Path) -> None:
    """Remove what an earlier sweep could not."""
    for name in _names(root):
        if name.startswith(_GONE):
            shutil.rmtree(root / name, ignore_errors=True)


def _names(root: Path) -> list[str]:
    try:
        return sorted(each.name for each in os.scandir(root) if each.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _size(path: Path) -> int:
    """Bytes of all files below; those that vanish meanwhile do not count."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
