"""Hooks of schemathesis: the run must not end its own key, and which refusals of valid requests are no failures."""

from __future__ import annotations

import os
from typing import Any

import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.core.failures import Failure
from schemathesis.openapi.checks import RejectedPositiveData

_CONDITIONS = {"urn:autosbp:problem:idempotency-key-reused", "urn:autosbp:problem:changed"}
"""Refusals of what depends on earlier requests: a key that another request had, an ETag that the resource has not."""


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:  # noqa: ARG001
    """Keep revocations and rotations off the key that the run calls with."""
    if (case.path_parameters or {}).get("key_id") == os.environ["FUZZ_KEY_ID"]:
        case.path_parameters["key_id"] = "key-of-nobody"


@schemathesis.hook
def filter_failure(context: HookContext, failure: Failure, case: Case, response: Response) -> bool:  # noqa: ARG001
    """Whether this is a failure."""
    if not isinstance(failure, RejectedPositiveData):
        return True
    return response.json().get("type") not in _CONDITIONS
