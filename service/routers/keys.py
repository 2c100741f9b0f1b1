"""/v1/keys"""

from __future__ import annotations

from datetime import timedelta

from fastapi import Response

from service.models import KeyRow
from service.routers._base import IDEMPOTENT, Responses, following, listed, located, posted, problems, router
from service.schemas._base import Page, PathId, WindowDep
from service.schemas.access import Key, KeyRequest, NewKey, RotateRequest
from service.services import keys
from service.services.keys import Made
from service.state import State, StateDep

routes = router("keys", "admin", read="admin")
_LINKS = {"rotate": "post /v1/keys/{key_id}:rotate", "revoke": "delete /v1/keys/{key_id}"}
_MADE: Responses = {201: {**located("All keys.", tagged=False), **following("key_id", **_LINKS)}}


@routes.post("", summary="Make an API key", status_code=201, responses={**_MADE, **posted()}, openapi_extra=IDEMPOTENT)
def create(state: StateDep, response: Response, request: KeyRequest) -> NewKey:
    """A key of the caller's tenant; its text is shown in this answer alone. Once there is a key, every request needs one."""
    lifetime = None if request.lifetime_s is None else timedelta(seconds=request.lifetime_s)
    by = state.call.caller.key_id
    return _made(state, response, keys.create(state.database, request.name, request.scopes, lifetime, by))


@routes.get("", summary="List API keys", responses=listed("key_id", **_LINKS))
def listing(state: StateDep, window: WindowDep) -> Page[Key]:
    """Newest first, revoked and expired ones too; without their text, which is not stored."""
    rows, next_cursor = keys.listing(state.database, window)
    return Page(items=[_shown(row) for row in rows], next_cursor=next_cursor)


@routes.post(
    "/{key_id}:rotate",
    summary="Replace an API key",
    status_code=201,
    responses={**_MADE, **posted(404)},
    openapi_extra=IDEMPOTENT,
)
def rotate(state: StateDep, response: Response, key_id: PathId, request: RotateRequest) -> NewKey:
    """A new key with the same name, scopes and lifetime; the old one works on for a while. 409 if it no longer does."""
    grace = timedelta(seconds=request.grace_s)
    return _made(state, response, keys.rotate(state.database, key_id, grace, state.call.caller.key_id))


@routes.delete("/{key_id:name}", summary="Revoke an API key", responses=problems(404))
def revoke(state: StateDep, key_id: PathId) -> Key:
    """At once, and for good; the key stays in the list. Repeating it changes nothing."""
    row = keys.revoke(state.database, key_id)
    state.gate.keys_changed()
    return _shown(row)


def _made(state: State, response: Response, made: Made) -> NewKey:
    state.gate.keys_changed()
    response.headers["location"] = "/v1/keys"
    response.headers["cache-control"] = "no-store"
    return NewKey(**_shown(made.row).model_dump(), secret=made.text)


def _shown(row: KeyRow) -> Key:
    return Key.model_validate(
        {
            "id": row.id,
            "name": row.name,
            "prefix": row.prefix,
            "scopes": row.scopes.split(),
            "state": keys.state_of(row),
            "created_by": row.created_by,
            "created_at": row.created_at,
            "expires_at": row.expires_at,
            "revoked_at": row.revoked_at,
        }
    )
