"""Schemathesis hooks: protect the run's own key, accept state-dependent refusals, and record responses by phase."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.core.failures import Failure
from schemathesis.openapi.checks import RejectedPositiveData

_CONDITIONS = {"urn:autosbp:problem:idempotency-key-reused", "urn:autosbp:problem:changed"}
"""Refusals that depend on earlier requests: a reused idempotency key, an outdated ETag."""


_answers = Path(os.environ["FUZZ_ANSWERS"]).open("a", buffering=1)  # noqa: SIM115 - the run ends without a word


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:  # noqa: ARG001
    """Prevent revocation and rotation of the key that the run uses."""
    if (case.path_parameters or {}).get("key_id") == os.environ["FUZZ_KEY_ID"]:
        case.path_parameters["key_id"] = "key-of-nobody"


@schemathesis.hook
def after_call(context: HookContext, case: Case, response: Response) -> None:  # noqa: ARG001
    """Append the phase and status class of the response to the record."""
    phase = str(case.meta.phase.name) if case.meta is not None else "other"
    _answers.write(f"{phase} {response.status_code // 100}xx\n")


@schemathesis.hook
def filter_failure(context: HookContext, failure: Failure, case: Case, response: Response) -> bool:  # noqa: ARG001
    """Whether a failure is real; conditional refusals of valid requests are not."""
    if not isinstance(failure, RejectedPositiveData):
        return True
    return response.json().get("type") not in _CONDITIONS
