"""The table of job kinds: what runs in the worker, what it reads, what it stores."""

from __future__ import annotations

from functools import partial

from service.jobs._base import JobKind, Kinds
from service.services import calibrations, models, searches, trials
from service.settings import Settings


def kinds(settings: Settings) -> Kinds:
    """Every kind of this service. A trial occupies a cluster, so it is not repeated unasked."""
    tasks = "service.jobs.tasks"
    return {
        "capture": JobKind(f"{tasks}:capture", models.prepare_capture, models.store_capture, resumable=True),
        "calibrate": JobKind(
            f"{tasks}:calibrate",
            partial(calibrations.prepare_calibrate, settings),
            calibrations.store_calibrate,
            resumable=True,
        ),
        "search": JobKind(f"{tasks}:search", searches.prepare, searches.store, resumable=True),
        "trial": JobKind(f"{tasks}:trial", partial(trials.prepare, settings), trials.store, resumable=False),
    }
