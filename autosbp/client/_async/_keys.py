"""API keys, the audit log, and the service's health and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import cast

from autosbp.client import documents
from autosbp.client._async._base import Part
from autosbp.client._conditional_requests import window
from autosbp.client._http_messages import Document
from autosbp.client._types import Scope


class Keys(Part):
    """Requests of a tenant's administrators, and the health routes."""

    async def make_key(
        self,
        name: str,
        scopes: Sequence[Scope],
        lifetime_s: float | None = 90 * 86_400.0,
        *,
        idempotency_key: str | None = None,
    ) -> documents.NewKey:
        """Create an API key; its text is ``["secret"]``, and the service shows it only this once."""
        body = {"name": name, "scopes": list(scopes), "lifetime_s": lifetime_s}
        return cast(documents.NewKey, await self._at.post("/v1/keys", body, key=idempotency_key))

    async def rotate_key(
        self, key_id: str, grace_s: float = 3600.0, *, idempotency_key: str | None = None
    ) -> documents.NewKey:
        """Replace an API key; the old one stays valid for ``grace_s`` seconds."""
        found = await self._at.post(f"/v1/keys/{key_id}:rotate", {"grace_s": grace_s}, key=idempotency_key)
        return cast(documents.NewKey, found)

    async def revoke_key(self, key_id: str) -> documents.Key:
        """Revoke an API key immediately."""
        found: documents.Key = (await self._at.send("DELETE", f"/v1/keys/{key_id}")).json()
        return found

    def api_keys(
        self,
        *,
        limit: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> AsyncIterator[documents.Key]:
        """Every API key of the tenant, without its secret."""
        query = window(limit, created_after, created_before)
        return cast(AsyncIterator[documents.Key], self._at.pages("/v1/keys", query))

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
    ) -> AsyncIterator[documents.AuditEntry]:
        """The tenant's audit log, newest first.

        With ``strangers``: the calls of unauthenticated callers, which only admins of the operators' tenant may read.
        """
        query = {"caller": caller, "method": method, "status": status, "strangers": strangers}
        query.update(window(limit, created_after, created_before))
        return cast(AsyncIterator[documents.AuditEntry], self._at.pages("/v1/audit", query))

    async def health(self) -> Document:
        """Whether the service's process answers, and its version."""
        return await self._at.get("/healthz", tries=1)

    async def ready(self) -> Document:
        """Whether the service is ready for work; ``UnreachableError`` if not."""
        return await self._at.get("/readyz", tries=1)

    async def metrics(self) -> str:
        """Metrics in Prometheus text format."""
        return (await self._at.send("GET", "/metrics")).text
