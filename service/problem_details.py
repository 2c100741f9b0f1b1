"""Problem details (RFC 9457): the format of every error, as plain data.

``type`` is ``urn:autosbp:problem:NAME``, or ``about:blank`` if the HTTP status is all there is to say. ``problem_of``
maps the exceptions of ``autosbp.errors``; request handlers use it, and the worker process uses it for jobs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from autosbp.errors import (
    AutosbpError,
    CalibrationError,
    InfeasibleError,
    InputError,
    TrialError,
    UnsupportedError,
    abbreviated_repr,
)

MEDIA_TYPE = "application/problem+json"
_PREFIX = "urn:autosbp:problem:"
_MAX_VALUE_CHARS = 500

_TYPES: tuple[tuple[type[AutosbpError], str, str, int], ...] = (
    (InputError, "invalid-input", "Invalid value", 422),
    (InfeasibleError, "infeasible", "No feasible strategy", 422),
    (UnsupportedError, "unsupported", "Unsupported", 422),
    (CalibrationError, "calibration-failed", "The calibration failed", 500),
    (TrialError, "trial-failed", "The trial failed", 500),
    (AutosbpError, "failed", "The operation failed", 500),
)


class ProblemError(Exception):
    """A refusal by the service itself.

    Attributes:
        problem: the problem document.
        status: the HTTP status.
        headers: extra response headers.
    """

    def __init__(
        self,
        status: int,
        name: str,
        title: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        **members: object,
    ) -> None:
        self.problem = problem(status, detail, name=name, title=title, members=members)
        self.status, self.headers = status, dict(headers or {})
        super().__init__(detail)


def not_found(what: str, identifier: str) -> ProblemError:
    """404: the resource is not stored."""
    return ProblemError(404, "not-found", "Resource not found", f"no {what} {identifier!r}")


def conflict(detail: str) -> ProblemError:
    """409: the resource's present state forbids the request."""
    return ProblemError(409, "conflict", "Conflict with the state of the resource", detail)


def precondition_failed(detail: str) -> ProblemError:
    """412: the request was meant for another version of the resource."""
    return ProblemError(412, "changed", "The resource has changed", detail)


def problem(
    status: int,
    detail: str,
    *,
    name: str | None = None,
    title: str | None = None,
    instance: str | None = None,
    members: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Build a problem document; ``members`` are extension members, reduced to safe JSON."""
    document: dict[str, Any] = {
        "type": f"{_PREFIX}{name}" if name else "about:blank",
        "title": title or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": instance,
    }
    document.update({key: json_safe(value) for key, value in (members or {}).items()})
    return document


def problem_of(error: BaseException, instance: str | None = None) -> dict[str, Any]:
    """The problem document of any exception; exceptions of unknown classes become an opaque 500."""
    if isinstance(error, ProblemError):
        return {**error.problem, "instance": instance}
    for kind, name, title, status in _TYPES:
        if isinstance(error, kind):
            return problem(status, str(error), name=name, title=title, instance=instance, members=_members(error))
    detail = "internal error; see the service log"
    return problem(500, detail, name="internal", title="Internal error", instance=instance)


def _members(error: BaseException) -> dict[str, object]:
    if isinstance(error, InputError):
        return {"field": error.field, "value": error.value, "limit": error.limit}
    if isinstance(error, InfeasibleError):
        members: dict[str, object] = {"constraint": error.constraint, "limit": error.limit, "needed": error.needed}
        return {**members, "conflict": list(error.conflict)} if error.conflict else members
    return {}


def json_safe(value: object) -> Any:
    """Return ``value`` if it is small, finite JSON, else a short text in its place."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if _is_large(value):
        return abbreviated_repr(value, _MAX_VALUE_CHARS)
    try:
        text = json.dumps(value, allow_nan=False)
        text.encode()
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return _short(ascii(type(value).__name__) if isinstance(value, (dict, list)) else ascii(value))
    return value if len(text) <= _MAX_VALUE_CHARS else _short(text)


def _is_large(value: object) -> bool:
    """Whether a value holds more nested values than could be shown; checked first, as serialising them takes long."""
    waiting, seen = [value], 0
    while waiting:
        one = waiting.pop()
        if isinstance(one, (dict, list)):
            seen += len(one)
            if seen > _MAX_VALUE_CHARS:
                return True
            waiting += one.values() if isinstance(one, dict) else one
    return False


def _short(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 3] + "..."
