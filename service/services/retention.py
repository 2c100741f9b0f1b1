"""Deletion of old files of ended jobs, by age and by total size.

    DATA/trials/TRIAL   log, request and result of a trial      DATA/jobs/JOB      an outcome that is stored by now
    DATA/calibrations/JOB   those of a measurement              LAUNCHES/KEY       files of a launcher and its nodes
    DATA/tunings/JOB        trials and logs of a search

The measurements stay in the database. A folder is deleted only if its job is known here and has ended, and neither the
cluster nor the artifact storage still needs it. It is renamed first, so that a folder that is half deleted when the
service dies is never mistaken for a complete one; the next sweep deletes the rest.
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

from autosbp.service.db import Database
from autosbp.service.jobs._base import FINAL_STATES
from autosbp.service.launchers._base import Launcher, LauncherError
from autosbp.service.models import JobRow, TrialRow, now
from autosbp.service.services import artifacts
from autosbp.service.settings import Settings

_log = logging.getLogger("autosbp.service")
_REMOVED_PREFIX = ".removed-"
_CHUNK = 500
_MIN_AGE = timedelta(hours=1)  # clients that waited for a trial still read its log
Ends = Mapping[str, datetime]


@dataclass(frozen=True, slots=True)
class _EndedJobFolder:
    """A folder of a job, with the time at which the job ended."""

    at: datetime
    path: Path


def sweep(settings: Settings, database: Database, launcher: Launcher | None) -> list[Path]:
    """Delete folders older than ``files_days``, then the oldest while the total exceeds ``files_bytes``.

    By size, nothing is deleted in the first hour after a job's end. Returns the deleted folders.
    """
    launches = settings.launches
    data = settings.data_dir.resolve()
    roots = (data / "trials", data / "calibrations", data / "jobs", data / "tunings", launches)
    for root in roots:
        _delete_leftovers(root)
    active, owed = _active(launcher), frozenset(artifacts.unsaved_job_ids(settings))
    found = [
        *_ended(
            roots[0], lambda names: _ends(database, lambda ids: _of_trials(ids).where(JobRow.id.not_in(owed)), names)
        ),
        *_ended(roots[1], lambda names: _ends(database, _of_jobs, names), owed),
        *_ended(roots[3], lambda names: _ends(database, _of_jobs, names), owed),
        *_ended(roots[2], lambda names: _ends(database, _of_jobs, names)),
        *(() if active is None else _ended(launches, lambda keys: _of_keys(database, keys, owed), active)),
    ]
    left, moment = sum(_size(root) for root in roots), now()
    removed = []
    for each in sorted(found, key=lambda one: (one.at, one.path)):
        is_old = moment - each.at > timedelta(days=settings.files_days)
        if not is_old and (left <= settings.files_bytes or moment - each.at < _MIN_AGE):
            break
        num_bytes = _size(each.path)
        if _remove(each.path):
            left -= num_bytes
            removed.append(each.path)
    if removed:
        _log.info("removed the files of %d ended jobs", len(removed))
    return removed


def _active(launcher: Launcher | None) -> frozenset[str] | None:
    """Active keys on the cluster; None if it does not answer."""
    try:
        return frozenset(() if launcher is None else launcher.active_keys())
    except LauncherError as error:
        _log.warning("cannot list old launches: %s", error)
        return None


def _ended(
    root: Path, ends: Callable[[list[str]], Ends], needed: frozenset[str] = frozenset()
) -> Iterable[_EndedJobFolder]:
    names = [name for name in _names(root) if not name.startswith(".") and name not in needed]
    known = ends(names)
    return [_EndedJobFolder(known[name], root / name) for name in names if name in known]


def _of_keys(database: Database, keys: list[str], needed: frozenset[str]) -> Ends:
    """End time of each key's job (``JOB-ATTEMPT``), except for jobs whose files are still needed."""
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
    return JobRow.state.in_(FINAL_STATES)


def _remove(path: Path) -> bool:
    """Delete a folder; False if it failed or another process was faster."""
    gone = path.with_name(f"{_REMOVED_PREFIX}{secrets.token_hex(8)}")
    try:
        path.rename(gone)
    except FileNotFoundError:
        return False
    except OSError as error:
        _log.warning("cannot remove %s: %s", path, error)
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return True


def _delete_leftovers(root: Path) -> None:
    """Delete what an earlier sweep left."""
    for name in _names(root):
        if name.startswith(_REMOVED_PREFIX):
            shutil.rmtree(root / name, ignore_errors=True)


def _names(root: Path) -> list[str]:
    try:
        return sorted(each.name for each in os.scandir(root) if each.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _size(path: Path) -> int:
    """Bytes of all files below a path; files that vanish meanwhile do not count."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
