"""Route of /v1/audit: read the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from autosbp.service.request_state import StateDep
from autosbp.service.routers._base import respond_with_page, router
from autosbp.service.schemas._base import NO_NUL, Page, QueryId, WindowDep
from autosbp.service.schemas.access import AuditEntry
from autosbp.service.services import audit

routes = router("audit", "admin", read="admin")


@routes.get("", summary="Read the audit log", response_model=Page[AuditEntry])
def list_audit_entries(
    state: StateDep,
    window: WindowDep,
    caller: QueryId = None,
    method: Annotated[str | None, Query(max_length=16, pattern=NO_NUL)] = None,
    status: Annotated[int | None, Query(ge=100, le=599)] = None,
    strangers: Annotated[
        bool, Query(description="List unauthenticated calls instead; only for admins of the operating tenant.")
    ] = False,
) -> Response:
    """Lists audit entries, newest first, optionally of one key, method or status.

    The log has every call of the tenant that was meant to change something, and every call that its keys' scopes did
    not allow. With ``strangers`` it lists calls with no key or a wrong one, and those from a foreign host or page; only
    admins of the operators' tenant may ask for these (else 403).
    """
    rows, following = audit.listing(state, window, strangers, caller=caller, method=method, status=status)
    return respond_with_page(AuditEntry, rows, following)
