"""The client class."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import httpx

from autosbp.client._sync._connection import Connection
from autosbp.client._sync._keys import Keys
from autosbp.client._sync._lists import Lists
from autosbp.client._sync._reads import Reads
from autosbp.client._sync._removals import Removals
from autosbp.client._sync._submissions import Submissions


class Client(Submissions, Reads, Removals, Lists, Keys):
    """Client of one service. Use it as a context manager or close it; tasks and threads may share it.

    Args:
        url: address of the service.
        key: API key; by default the environment variable AUTOSBP_API_KEY, if set.
        timeout_s: longest wait for one response, in seconds.
        transport: custom httpx transport, such as one that calls an ASGI application directly.
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
