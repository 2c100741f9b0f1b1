"""String types of the API, and the error of a wait that timed out."""

from __future__ import annotations

from typing import Literal

from autosbp.errors import ServiceError

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
JobKind = Literal["capture", "calibrate", "search", "trial", "tune", "why", "what-if"]
Scope = Literal["read", "search", "trial", "calibrate", "admin"]
Target = Literal["deepspeed", "dtensor", "megatron", "perfetto", "torchtitan"]


class StillRunningError(ServiceError):
    """A job has not ended within the caller's timeout; it continues."""
