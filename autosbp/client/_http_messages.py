"""The service's responses, and its problem documents (RFC 9457) as the library's errors."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from autosbp.errors import (
    AutosbpError,
    CalibrationError,
    InfeasibleError,
    InputError,
    ServiceError,
    TrialError,
    UnsupportedError,
)

Document = dict[str, Any]
KEY_VARIABLE = "AUTOSBP_API_KEY"
_FINAL = ("succeeded", "failed", "cancelled")
PAUSE_S = 0.2
_NOT_NOW = (429, 503)
_GATEWAY = (502, 504)
_BY_DETAIL: Mapping[str, type[AutosbpError]] = {
    "unsupported": UnsupportedError,
    "calibration-failed": CalibrationError,
    "trial-failed": TrialError,
}


class UnreachableError(ServiceError):
    """The service did not answer, or answered that it cannot serve the request now.

    ``pause_s``: seconds to wait before a retry, from Retry-After if present; None if no connection was made.
    """

    def __init__(self, detail: str, pause_s: float | None = None) -> None:
        self.pause_s = pause_s
        super().__init__(detail)


class LostAnswerError(UnreachableError):
    """The response was lost or came from a gateway: the service may or may not have executed the request."""


class ConflictError(ServiceError):
    """The resource's state forbids the request, such as cancelling a job that has ended."""


class NotFoundError(ServiceError):
    """The service does not have the requested resource."""


class TooLargeError(ServiceError):
    """The request exceeds the service's size limit."""


@dataclass(frozen=True, slots=True)
class Job:
    """Snapshot of a job; the fields are those of ``/v1/jobs``."""

    id: str
    kind: str
    state: str
    resource: str | None
    progress: float | None
    message: str
    figures: Mapping[str, float]
    problem: Mapping[str, Any] | None
    result: Mapping[str, str]

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self.state in _FINAL

    @staticmethod
    def from_dict(data: Document) -> Job:
        """Read a response, ignoring fields that a newer service may add."""
        return Job(**{key: data[key] for key in Job.__slots__ if key != "result"}, result=data["result"] or {})


_BY_STATUS: Mapping[object, type[ServiceError]] = {409: ConflictError, 413: TooLargeError}


def check(response: httpx.Response, url: str) -> None:
    """Raise the matching error of ``autosbp.errors`` or this module if the response reports one; ``url`` is for messages."""
    if not response.is_error:
        return
    status, document = response.status_code, _json(response)
    if document is None and status >= 500:
        detail = f"{url} returned {status} without a JSON object; is it an autosbp service?"
        raise LostAnswerError(detail, _pause_s(response))
    document = document_of(response) if document is None else document
    detail = f"the service at {url}: {document.get('detail') or document.get('title') or status}"
    kind = str(document.get("type", "")).rpartition(":")[2]
    if kind == "idempotency-in-progress" or status in _GATEWAY:
        raise LostAnswerError(detail, _pause_s(response))
    if status in _NOT_NOW:
        raise UnreachableError(detail, _pause_s(response))
    raise error_of({"status": status, **document})


def new_key() -> str:
    """A new random idempotency key."""
    return secrets.token_hex(16)


def _pause_s(response: httpx.Response) -> float:
    """Seconds of Retry-After, in either of its forms (RFC 9110, section 10.2.3); 1 s if it is missing or invalid."""
    text = response.headers.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 1.0
    return max(0.0, (moment - datetime.now(moment.tzinfo)).total_seconds())


def error_of(problem: Mapping[str, Any]) -> AutosbpError:
    """The error that a problem document describes."""
    name = str(problem.get("type", "")).rpartition(":")[2]
    detail = str(problem.get("detail") or problem.get("title") or "the service failed")
    if name == "invalid-input":
        return InputError(str(problem.get("field")), problem.get("value"), str(problem.get("limit")))
    if name == "infeasible":
        return _infeasible(problem, detail)
    if name in _BY_DETAIL:
        return _BY_DETAIL[name](detail)
    refused = NotFoundError if name == "not-found" else _BY_STATUS.get(problem.get("status"), ServiceError)
    return refused(f"{problem.get('title')} ({problem.get('status')}): {detail}")


def _infeasible(problem: Mapping[str, Any], detail: str) -> InfeasibleError:
    constraint, limit, needed = str(problem.get("constraint")), problem.get("limit"), problem.get("needed")
    bound = float("inf") if limit is None else limit if isinstance(limit, str) else float(limit)
    least = None if needed is None else float(needed)
    conflict = tuple(map(str, problem.get("conflict") or ()))
    plain = str(InfeasibleError(constraint, bound, least))
    behind = str(InfeasibleError("", "", None, "", conflict)).removeprefix(str(InfeasibleError("", "", None)))
    own = detail.removeprefix(plain).removesuffix(behind).removeprefix(". ")
    return InfeasibleError(constraint, bound, least, own, conflict)


def document_of(response: httpx.Response) -> Document:
    document = _json(response)
    if document is None:
        where = f"{response.request.method} {response.request.url}"
        raise ServiceError(f"{where} returned {response.status_code} without a JSON object")
    return document


def _json(response: httpx.Response) -> Document | None:
    """The JSON object of a response, or None if there is none."""
    try:
        document = response.json()
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
