"""/v1/audit"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from service.routers._base import paged, router
from service.schemas._base import NO_NUL, Page, QueryId, WindowDep
from service.schemas.access import AuditEntry
from service.services import audit
from service.state import StateDep

routes = router("audit", "admin", read="admin")


@routes.get("", summary="Read the audit log", response_model=Page[AuditEntry])
def listing(
    state: StateDep,
    window: WindowDep,
    caller: QueryId = None,
    method: Annotated[str | None, Query(max_length=16, pattern=NO_NUL)] = None,
    status: Annotated[int | None, Query(ge=100, le=599)] = None,
    strangers: Annotated[
        bool, Query(description="Calls of nobody known instead, for the operators' admins alone.")
    ] = False,
) -> Response:
    """Newest first: every call of the tenant that was meant to change something, and every one that its keys' scopes did
    not allow; of one key, method or status, if asked. With ``strangers``, which admins of the operators' tenant alone may
    ask for (403), those that came with no key, a wrong one, or from a foreign host or page."""
    rows, following = audit.listing(state, window, strangers, caller=caller, method=method, status=status)
    return paged(AuditEntry, rows, following)
