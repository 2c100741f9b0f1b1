"""A client of the service, for programs and for the command line.

    with Client("http://127.0.0.1:8000") as client:
        model = client.post_model(zoo="gpt2")
        cluster = client.post_cluster("local:2x2")
        job = client.wait(client.search(model, cluster, options={"global_batch": 64}))
        plan = client.get_strategy(job.result["strategy_id"])

Every method raises ``ServiceError`` when the service cannot be reached or refuses; a refusal that names a value comes
back as the same ``InputError`` or ``InfeasibleError`` that the library would have raised here. ``documents`` has the types of
what it reads.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import httpx

from autosbp.client import documents
from autosbp.client._base import NotModifiedError, Version
from autosbp.client._connection import (
    KEY_VARIABLE,
    ConflictError,
    Connection,
    Document,
    Job,
    LostAnswerError,
    NotFoundError,
    TooLargeError,
    UnreachableError,
    error_of,
    new_key,
)
from autosbp.client._jobs import JobKind, JobState, StillRunningError
from autosbp.client._keys import Keys, Scope
from autosbp.client._lists import Lists
from autosbp.client._reads import Reads, Target
from autosbp.client._submissions import Submissions

__all__ = [
    "KEY_VARIABLE",
    "Client",
    "ConflictError",
    "Document",
    "Job",
    "JobKind",
    "JobState",
    "LostAnswerError",
    "NotFoundError",
    "NotModifiedError",
    "Scope",
    "StillRunningError",
    "Target",
    "TooLargeError",
    "UnreachableError",
    "Version",
    "documents",
    "error_of",
    "new_key",
]


class Client(Submissions, Reads, Lists, Keys):
    """A connection to one service. May be used by several threads; close it or use it as a context manager.

    Args:
        url: address of the service.
        key: API key; by default that in the environment variable AUTOSBP_API_KEY, or none.
        timeout_s: longest wait for one answer.
        transport: another way to send requests, such as an ASGI application's.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        timeout_s: float = 120.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._at = Connection(url, key, timeout_s, transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._at.close()
