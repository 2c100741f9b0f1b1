"""HTTP requests to the service, with retries."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from autosbp.client._http_messages import (
    KEY_VARIABLE,
    PAUSE_S,
    Document,
    LostAnswerError,
    UnreachableError,
    check,
    document_of,
    new_key,
)
from autosbp.client._sleep import pause
from autosbp.errors import InputError, ServiceError

_TRIES = 3
_LONGEST_PAUSE_S = 10.0


class Connection:
    """Sends requests to one service; several tasks or threads may share it.

    Every POST has an idempotency key, so a retry after a lost response does not execute it twice.
    """

    def __init__(self, url: str, key: str | None, timeout_s: float, transport: httpx.BaseTransport | None) -> None:
        self._url = url
        key = os.environ.get(KEY_VARIABLE) if key is None else key
        headers = {} if not key else {"authorization": f"Bearer {key}"}
        timeout = httpx.Timeout(timeout_s, connect=5.0)
        try:
            self._http = httpx.Client(base_url=url, timeout=timeout, transport=transport, headers=headers)
        except (httpx.InvalidURL, ValueError) as error:
            raise InputError("url", url, f"expected an http:// or https:// address ({error})") from None

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def get(self, path: str, query: Mapping[str, Any] | None = None, *, tries: int = _TRIES) -> Document:
        """GET a resource; members of ``query`` that are None are omitted."""
        return document_of(self.send("GET", path, query=query, tries=tries))

    def post(
        self,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        key: str | None = None,
    ) -> Document:
        """POST and return the response; ``key`` is the idempotency key, by default a new one."""
        keyed = {"idempotency-key": key or new_key(), **(headers or {})}
        return document_of(self.send("POST", path, body=body, headers=keyed))

    def pages(self, path: str, query: Mapping[str, Any]) -> Iterator[Document]:
        """Iterate over every item of a paginated list, newest first."""
        cursor: Mapping[str, Any] = {}
        while True:
            answer = self.get(path, {**query, **cursor})
            for item in answer["items"]:
                yield item
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
        """Send a request; retry if its response was lost or asks for a retry later.

        A DELETE is not retried, since the retry would not find what the first try removed.

        Raises:
            LostAnswerError: all tries failed, and the service may have executed one of them.
            UnreachableError: the service did not answer or was not ready.
            AutosbpError: any other error response, as ``check`` translates it.
        """
        lost: LostAnswerError | None = None
        for left in reversed(range(1 if method == "DELETE" else tries)):
            try:
                return self._send(method, path, body, query, headers)
            except UnreachableError as error:
                lost = error if isinstance(error, LostAnswerError) else lost
                if not left or (error.pause_s is None and lost is None):
                    raise lost or error from None
                pause(min(_LONGEST_PAUSE_S, PAUSE_S if error.pause_s is None else error.pause_s))
        raise AssertionError("the last try returns or raises")

    def _send(
        self, method: str, path: str, body: object, query: Mapping[str, Any] | None, headers: Mapping[str, str] | None
    ) -> httpx.Response:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        with self._translated():
            response = self._http.request(method, path, json=body, params=given, headers=headers)
        check(response, self._url)
        return response

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """Stream a GET response."""
        with self._translated():
            with self._http.stream("GET", path, headers=headers) as response:
                if response.is_error:
                    response.read()
                    check(response, self._url)
                yield response

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadTimeout) as error:
            raise LostAnswerError(f"cannot reach the service at {self._url}: {error}", PAUSE_S) from None
        except httpx.TransportError as error:
            raise UnreachableError(f"cannot reach the service at {self._url}: {error}") from None
        except httpx.HTTPError as error:
            raise ServiceError(f"the service at {self._url}: {error}") from None
        except ValueError as error:
            raise InputError("body", "the request", f"expected finite JSON ({error})") from None
