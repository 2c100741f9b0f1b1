"""The wire to a service: requests, answers, and problem documents as the library's own errors."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
_TRIES = 3
_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_NOT_NOW = (429, 503)
_GATEWAY = (502, 504)
_BY_DETAIL: Mapping[str, type[AutosbpError]] = {
    "unsupported": UnsupportedError,
    "calibration-failed": CalibrationError,
    "trial-failed": TrialError,
}


class UnreachableError(ServiceError):
    """The service did not answer at all, or says: not now. ``pause_s`` is how long to leave it alone, such as its Retry-After
    says; None where it cannot even be connected to."""

    def __init__(self, detail: str, pause_s: float | None = None) -> None:
        self.pause_s = pause_s
        super().__init__(detail)


class LostAnswerError(UnreachableError):
    """The answer was lost, or is that of a gateway: the request may have been done or not."""


class ConflictError(ServiceError):
    """The state of what was asked for forbids it: such as a cancellation of a job that has ended."""


class NotFoundError(ServiceError):
    """The service does not hold what was asked for."""


class TooLargeError(ServiceError):
    """The service takes no request that large."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the service as it was when it was asked for; the fields are those of ``/v1/jobs``."""

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
        """Read the service's answer, ignoring members that a newer service may add."""
        return Job(**{key: data[key] for key in Job.__slots__ if key != "result"}, result=data["result"] or {})


_BY_STATUS: Mapping[object, type[ServiceError]] = {409: ConflictError, 413: TooLargeError}


class Connection:
    """Sends requests to one service; may be used by several threads.

    A POST has an idempotency key, so one whose answer was lost is sent again and done once.
    """

    def __init__(self, url: str, key: str | None, timeout_s: float, transport: httpx.BaseTransport | None) -> None:
        self._url = url
        key = os.environ.get(KEY_VARIABLE) if key is None else key
        headers = {} if not key else {"authorization": f"Bearer {key}"}
        timeout = httpx.Timeout(timeout_s, connect=5.0)
        try:
            self._http = httpx.Client(base_url=url, timeout=timeout, transport=transport, headers=headers)
        except (httpx.InvalidURL, ValueError) as error:
            raise InputError("url", url, f"an http:// or https:// address is expected ({error})") from None

    def close(self) -> None:
        """Close it."""
        self._http.close()

    def get(self, path: str, query: Mapping[str, Any] | None = None, *, tries: int = _TRIES) -> Document:
        """A resource; members of ``query`` that are None are left out."""
        return document_of(self.send("GET", path, query=query, tries=tries))

    def post(
        self,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        key: str | None = None,
    ) -> Document:
        """What a POST was answered with; ``key`` is its idempotency key, by default one of its own."""
        keyed = {"idempotency-key": key or new_key(), **(headers or {})}
        return document_of(self.send("POST", path, body=body, headers=keyed))

    def pages(self, path: str, query: Mapping[str, Any]) -> Iterator[Document]:
        """Every item of a list, newest first."""
        cursor: Mapping[str, Any] = {}
        while True:
            answer = self.get(path, {**query, **cursor})
            yield from answer["items"]
            if answer["next_cursor"] is None:
                return
            cursor = {"cursor": answer["next_cursor"]}

    def send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        tries: int = _TRIES,
    ) -> httpx.Response:
        """One request, sent again where its answer was lost or says: not now. A DELETE is not, which would not find what it has
        removed. An error of the tree for any answer but a good one; ``LostAnswerError`` where one of the tries may have
        been done."""
        lost: LostAnswerError | None = None
        for left in reversed(range(1 if method == "DELETE" else tries)):
            try:
                return self._send(method, path, body, query, headers)
            except UnreachableError as error:
                lost = error if isinstance(error, LostAnswerError) else lost
                if not left or (error.pause_s is None and lost is None):
                    raise lost or error from None
                time.sleep(min(_LONGEST_PAUSE_S, _PAUSE_S if error.pause_s is None else error.pause_s))
        raise AssertionError("the last try returns or raises")

    def _send(
        self, method: str, path: str, body: object, query: Mapping[str, Any] | None, headers: Mapping[str, str] | None
    ) -> httpx.Response:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        with self._translated():
            response = self._http.request(method, path, json=body, params=given, headers=headers)
        self._check(response)
        return response

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """A response that is read as it comes."""
        with self._translated(), self._http.stream("GET", path, headers=headers) as response:
            if response.is_error:
                response.read()
                self._check(response)
            yield response

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadTimeout) as error:
            raise LostAnswerError(f"the service at {self._url} cannot be reached: {error}", _PAUSE_S) from None
        except httpx.TransportError as error:
            raise UnreachableError(f"the service at {self._url} cannot be reached: {error}") from None
        except httpx.HTTPError as error:
            raise ServiceError(f"the service at {self._url}: {error}") from None
        except ValueError as error:
            raise InputError("body", "the request", f"finite JSON is expected ({error})") from None

    def _check(self, response: httpx.Response) -> None:
        if not response.is_error:
            return
        status, document = response.status_code, _json(response)
        if document is None and status >= 500:
            detail = f"the service at {self._url} is answered for with {status} and no JSON object"
            raise LostAnswerError(detail, _pause_s(response))
        document = document_of(response) if document is None else document
        detail = f"the service at {self._url}: {document.get('detail') or document.get('title') or status}"
        kind = str(document.get("type", "")).rpartition(":")[2]
        if kind == "idempotency-in-progress" or status in _GATEWAY:
            raise LostAnswerError(detail, _pause_s(response))
        if status in _NOT_NOW:
            raise UnreachableError(detail, _pause_s(response))
        raise error_of({"status": status, **document})


def new_key() -> str:
    """An idempotency key that no other request has."""
    return secrets.token_hex(16)


def _pause_s(response: httpx.Response) -> float:
    """What Retry-After says, in either of its forms (RFC 9110, section 10.2.3)."""
    text = response.headers.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 1.0
    return max(0.0, (moment - datetime.now(moment.tzinfo)).total_seconds())


def error_of(problem: Mapping[str, Any]) -> AutosbpError:
    """The error that a problem document stands for."""
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
        raise ServiceError(f"{where} was answered with {response.status_code} and no JSON object")
    return document


def _json(response: httpx.Response) -> Document | None:
    """The JSON object of an answer, or None where it has none."""
    try:
        document = response.json()
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
