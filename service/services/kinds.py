"""The table of job kinds: what runs in the worker, what it reads, what it stores."""

from __future__ import annotations

from functools import partial

from service.jobs._base import JobKind, Kinds, Limits
from service.objects import Objects
from service.services import analyses, artifacts, calibrations, models, searches, trials
from service.settings import Settings


def kinds(settings: Settings) -> Kinds:
    """Every kind of this service. What measures has limits of its own, in its inputs; what it starts may need any memory."""
    tasks = "service.jobs.tasks"
    limits = Limits(settings.job_memory_bytes, settings.job_cpu_s, settings.job_timeout_s)
    plan = partial(JobKind, resumable=True, lane="plan", limits=limits)
    keep = partial(artifacts.keep, settings, Objects(settings.artifacts_url).settle())
    measure = partial(JobKind, resumable=True, lane="measure", keep=keep)
    calibrate, trial = partial(calibrations.prepare_calibrate, settings), partial(trials.prepare, settings)
    return {
        "capture": plan(f"{tasks}:capture", models.prepare_capture, partial(models.store_capture, settings)),
        "search": plan(f"{tasks}:search", searches.prepare, searches.store),
        "why": plan(f"{tasks}:why", analyses.prepare, analyses.store),
        "what-if": plan(f"{tasks}:what_if", analyses.prepare, analyses.store),
        "calibrate": measure(f"{tasks}:calibrate", calibrate, calibrations.store_calibrate),
        "trial": measure(f"{tasks}:trial", trial, trials.store),
    }
