"""Problem details (RFC 9457): the one shape of every error, as plain data.

``type`` is ``urn:autosbp:problem:NAME``, or ``about:blank`` where the HTTP status says it all. ``problem_of`` maps the
tree of ``autosbp.errors``; it is used by the request handlers and, for jobs, by the worker process.
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
    in_short,
)

MEDIA_TYPE = "application/problem+json"
_PREFIX = "urn:autosbp:problem:"
_MAX_VALUE_CHARS = 500

_TYPES: tuple[tuple[type[AutosbpError], str, str, int], ...] = (
    (InputError, "invalid-input", "A value is not accepted", 422),
    (InfeasibleError, "infeasible", "No strategy meets the limits", 422),
    (UnsupportedError, "unsupported", "A construct is not supported", 422),
    (CalibrationError, "calibration-failed", "The calibration failed", 500),
    (TrialError, "trial-failed", "The trial failed", 500),
    (AutosbpError, "failed", "The operation failed", 500),
)


class ProblemError(Exception):
    """A refusal that the service itself raises; carried to the client as its ``problem``, with ``headers``."""

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
    """404 for a resource that is not stored."""
    return ProblemError(404, "not-found", "The resource does not exist", f"there is no {what} {identifier!r}")


def conflict(detail: str) -> ProblemError:
    """409 for a request that the resource's present state forbids."""
    return ProblemError(409, "conflict", "The resource is in use or in another state", detail)


def changed(detail: str) -> ProblemError:
    """412 for a request that was meant for another version of the resource."""
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
    """A problem document; ``members`` are extensions, made safe for JSON."""
    document: dict[str, Any] = {
        "type": f"{_PREFIX}{name}" if name else "about:blank",
        "title": title or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": instance,
    }
    document.update({key: shown(value) for key, value in (members or {}).items()})
    return document


def problem_of(error: BaseException, instance: str | None = None) -> dict[str, Any]:
    """The problem of any exception; one that is not ours becomes an opaque 500."""
    if isinstance(error, ProblemError):
        return {**error.problem, "instance": instance}
    for kind, name, title, status in _TYPES:
        if isinstance(error, kind):
            return problem(status, str(error), name=name, title=title, instance=instance, members=_members(error))
    detail = "an internal error occurred; the log has the details"
    return problem(500, detail, name="internal", title="Internal error", instance=instance)


def _members(error: BaseException) -> dict[str, object]:
    if isinstance(error, InputError):
        return {"field": error.field, "value": error.value, "limit": error.limit}
    if isinstance(error, InfeasibleError):
        members: dict[str, object] = {"constraint": error.constraint, "limit": error.limit, "needed": error.needed}
        return {**members, "conflict": list(error.conflict)} if error.conflict else members
    return {}


def shown(value: object) -> Any:
    """``value`` where it is small finite JSON, else a short text that stands for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if _has_many(value):
        return in_short(value, _MAX_VALUE_CHARS)
    try:
        text = json.dumps(value, allow_nan=False)
        text.encode()
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return _short(ascii(type(value).__name__) if isinstance(value, (dict, list)) else ascii(value))
    return value if len(text) <= _MAX_VALUE_CHARS else _short(text)


def _has_many(value: object) -> bool:
    """Whether a value holds more others than could be shown: writing them all down would take long."""
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
