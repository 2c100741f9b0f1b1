"""ETags for conditional requests, and query parameters of lists."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from autosbp.client._http_messages import Document
from autosbp.errors import ServiceError


class NotModifiedError(ServiceError):
    """The resource has not changed since the caller's version."""


@dataclass(slots=True)
class Version:
    """The version (ETag) of a resource that the caller has; None at first.

    Pass the same object to each read of a resource: a read sets it, and the next read raises ``NotModifiedError``
    unless the resource has changed. Passed to a request that changes the resource, it makes the request fail if the
    resource is no longer at this version.
    """

    etag: str | None = None


def window(limit: int | None, after: datetime | None, before: datetime | None) -> Document:
    """Query parameters that every list has; None if unset.

    ``limit`` is the page size, which affects only speed; ``after`` and ``before`` bound the creation time.
    """
    moments = {"created_after": after, "created_before": before}
    return {"limit": limit, **{name: each and each.isoformat() for name, each in moments.items()}}


def condition(version: Version | None) -> dict[str, str] | None:
    """If-Match header of a request that applies only to this version; None for any version."""
    return None if version is None or version.etag is None else {"if-match": version.etag}
