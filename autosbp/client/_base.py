"""What the parts of the client share: their connection, versions of resources, and windows of lists."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autosbp.client._connection import Connection, Document, document_of
from autosbp.errors import ServiceError


class NotModifiedError(ServiceError):
    """The caller has the version of the resource that the service has."""


@dataclass(slots=True)
class Version:
    """Which version of a resource the caller has, by its ETag; None at first.

    Give the same one to each read of a resource: a read sets it, and the next one raises ``NotModifiedError`` unless the
    resource has changed since. Given to what changes a resource, that is done only to this version.
    """

    etag: str | None = None


class Part:
    """A part of the client."""

    _at: Connection

    def _read(self, path: str, version: Version | None, query: dict[str, Any] | None = None) -> Any:
        """A resource, unless ``version`` is its own."""
        known = {} if version is None or version.etag is None else {"if-none-match": version.etag}
        response = self._at.send("GET", path, query=query, headers=known)
        if response.status_code == 304:
            raise NotModifiedError(f"{path} is still of version {response.headers.get('etag')}")
        if version is not None:
            version.etag = response.headers.get("etag")
        return document_of(response)


def window(limit: int | None, after: datetime | None, before: datetime | None) -> Document:
    """Query parameters that every list has: items of a page, which is a matter of speed alone, and when they were made."""
    moments = {"created_after": after, "created_before": before}
    return {"limit": limit, **{name: each and each.isoformat() for name, each in moments.items()}}


def condition(version: Version | None) -> dict[str, str] | None:
    """The header of a request that is meant for one version."""
    return None if version is None or version.etag is None else {"if-match": version.etag}
