"""The table of job kinds: which task runs, what it reads, what it stores."""

from __future__ import annotations

from functools import partial

from autosbp.service.artifact_storage import ArtifactStorage
from autosbp.service.jobs._base import JobKind, Kinds, Limits
from autosbp.service.services import analyses, artifacts, calibrations, models, searches, trials
from autosbp.service.settings import Settings


def kinds(settings: Settings) -> Kinds:
    """All job kinds of the service.

    Measurements have no process limits here: their inputs contain limits, and what they start may need any amount of
    memory.
    """
    tasks = "autosbp.service.jobs.tasks"
    limits = Limits(settings.job_memory_bytes, settings.job_cpu_s, settings.job_timeout_s)
    plan = partial(JobKind, resumable=True, lane="plan", limits=limits)
    keep = partial(artifacts.save_files, settings, ArtifactStorage(settings.artifacts_url).pin_folder())
    measure = partial(JobKind, resumable=True, lane="measure", keep=keep)
    calibrate, trial = partial(calibrations.prepare_calibrate, settings), partial(trials.prepare, settings)
    return {
        "capture": plan(f"{tasks}:capture", models.prepare_capture, partial(models.store_capture, settings)),
        "search": plan(f"{tasks}:search", searches.prepare, searches.store),
        "why": plan(f"{tasks}:why", analyses.prepare, analyses.store),
        "what-if": plan(f"{tasks}:what_if", analyses.prepare, analyses.store),
        "calibrate": measure(f"{tasks}:calibrate", calibrate, calibrations.store_calibrate),
        "trial": measure(f"{tasks}:trial", trial, trials.store),
        "tune": measure(f"{tasks}:tune", partial(searches.prepare_tune, settings), searches.store_tune),
    }
