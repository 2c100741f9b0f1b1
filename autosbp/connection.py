"""The wire to a service: requests, answers, and problem documents as the library's own errors."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
_POST_TRIES = 3
_LONGEST_PAUSE_S = 10.0
_BY_DETAIL: Mapping[str, type[AutosbpError]] = {
    "unsupported": UnsupportedError,
    "calibration-failed": CalibrationError,
    "trial-failed": TrialError,
}


class UnreachableError(ServiceError):
    """The service did not answer at all, or says that it cannot work now."""


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


class Connection:
    """Sends requests to one service; may be used by several threads.

    A POST has an idempotency key of its own, so one whose answer was lost is sent again and done once.
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

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Document:
        """A resource; members of ``query`` that are None are left out."""
        return _document(self.send("GET", path, query=query))

    def post(self, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Document:
        """What a POST was answered with."""
        keyed = {"idempotency-key": secrets.token_hex(16), **(headers or {})}
        for left in reversed(range(_POST_TRIES)):
            try:
                return _document(self.send("POST", path, body=body, headers=keyed))
            except _LostError as error:
                if not left:
                    raise
                time.sleep(error.pause_s)
        raise AssertionError("the last try returns or raises")

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
    ) -> httpx.Response:
        """One request; an error of the tree for any answer but a good one."""
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
            raise _LostError(f"the service at {self._url} cannot be reached: {error}") from None
        except httpx.TransportError as error:
            raise UnreachableError(f"the service at {self._url} cannot be reached: {error}") from None
        except httpx.HTTPError as error:
            raise ServiceError(f"the service at {self._url}: {error}") from None
        except ValueError as error:
            raise InputError("body", "the request", f"finite JSON is expected ({error})") from None

    def _check(self, response: httpx.Response) -> None:
        if not response.is_error:
            return
        document = _document(response)
        kind = str(document.get("type", "")).rpartition(":")[2]
        if kind == "idempotency-in-progress":
            raise _LostError(str(document.get("detail")), _pause_s(response))
        if response.status_code == 503:
            raise UnreachableError(f"the service at {self._url}: {document.get('detail')}")
        raise error_of(document)


class _LostError(UnreachableError):
    """The answer was lost: the request may have been done or not."""

    def __init__(self, detail: str, pause_s: float = 0.2) -> None:
        self.pause_s = pause_s
        super().__init__(detail)


def _pause_s(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "1")
    return min(_LONGEST_PAUSE_S, float(text)) if text.isdigit() else 1.0


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
    refused = NotFoundError if name == "not-found" else TooLargeError if problem.get("status") == 413 else ServiceError
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


def _document(response: httpx.Response) -> Document:
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        where = f"{response.request.method} {response.request.url}"
        raise ServiceError(f"{where} was answered with {response.status_code} and no JSON object")
    return document
