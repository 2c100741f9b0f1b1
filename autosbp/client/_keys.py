"""API keys, the audit log, and how the service is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal, cast

from autosbp.client import documents
from autosbp.client._base import Part, window
from autosbp.client._connection import Document

Scope = Literal["read", "search", "trial", "calibrate", "admin"]


class Keys(Part):
    """What the tenant's administrators ask for, and what nobody needs a key for."""

    def make_key(
        self,
        name: str,
        scopes: Sequence[Scope],
        lifetime_s: float | None = 90 * 86_400.0,
        *,
        idempotency_key: str | None = None,
    ) -> documents.NewKey:
        """Make an API key; its text is ``["secret"]``, and is shown this once."""
        body = {"name": name, "scopes": list(scopes), "lifetime_s": lifetime_s}
        return cast(documents.NewKey, self._at.post("/v1/keys", body, key=idempotency_key))

    def rotate_key(
        self, key_id: str, grace_s: float = 3600.0, *, idempotency_key: str | None = None
    ) -> documents.NewKey:
        """Replace an API key; the old one works on for ``grace_s``."""
        found = self._at.post(f"/v1/keys/{key_id}:rotate", {"grace_s": grace_s}, key=idempotency_key)
        return cast(documents.NewKey, found)

    def revoke_key(self, key_id: str) -> documents.Key:
        """End an API key at once."""
        found: documents.Key = self._at.send("DELETE", f"/v1/keys/{key_id}").json()
        return found

    def api_keys(
        self,
        *,
        limit: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[documents.Key]:
        """Every API key of the tenant, without its text."""
        query = window(limit, created_after, created_before)
        return cast(Iterator[documents.Key], self._at.pages("/v1/keys", query))

    def audit(
        self,
        *,
        caller: str | None = None,
        method: str | None = None,
        status: int | None = None,
        strangers: bool | None = None,
        limit: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[documents.AuditEntry]:
        """The tenant's audit log, newest first; with ``strangers`` the calls of nobody known, for admins of the operators'
        tenant."""
        query = {"caller": caller, "method": method, "status": status, "strangers": strangers}
        query.update(window(limit, created_after, created_before))
        return cast(Iterator[documents.AuditEntry], self._at.pages("/v1/audit", query))

    def health(self) -> Document:
        """Whether the service's process answers, and its version."""
        return self._at.get("/healthz", tries=1)

    def ready(self) -> Document:
        """Whether the service can work; ``UnreachableError`` where it cannot."""
        return self._at.get("/readyz", tries=1)

    def metrics(self) -> str:
        """Numbers in Prometheus' text format."""
        return self._at.send("GET", "/metrics").text
