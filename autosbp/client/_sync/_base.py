"""Base class of the client's parts, which share one connection."""

from __future__ import annotations

from typing import Any

from autosbp.client._conditional_requests import NotModifiedError, Version
from autosbp.client._http_messages import document_of
from autosbp.client._sync._connection import Connection


class Part:
    """Base of the client's mixins."""

    _at: Connection

    def _read(self, path: str, version: Version | None, query: dict[str, Any] | None = None) -> Any:
        """Read a resource; ``NotModifiedError`` if it is still at ``version``, which is updated otherwise."""
        known = {} if version is None or version.etag is None else {"if-none-match": version.etag}
        response = self._at.send("GET", path, query=query, headers=known)
        if response.status_code == 304:
            raise NotModifiedError(f"{path} is still at version {response.headers.get('etag')}")
        if version is not None:
            version.etag = response.headers.get("etag")
        return document_of(response)
