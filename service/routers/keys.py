"""Routes of /v1/keys: create, list, rotate and revoke API keys."""

from __future__ import annotations

from datetime import timedelta

from fastapi import Response

from autosbp.service.models import KeyRow
from autosbp.service.request_state import AppState, StateDep
from autosbp.service.routers._base import (
    IDEMPOTENT,
    Responses,
    documented_links,
    documented_list,
    documented_location,
    documented_post_problems,
    documented_problems,
    router,
)
from autosbp.service.schemas._base import Page, PathId, WindowDep
from autosbp.service.schemas.access import Key, KeyRequest, NewKey, RotateRequest
from autosbp.service.services import keys
from autosbp.service.services.keys import NewApiKey

routes = router("keys", "admin", read="admin")
_LINKS = {"rotate": "post /v1/keys/{key_id}:rotate", "revoke": "delete /v1/keys/{key_id}"}
_MADE: Responses = {201: {**documented_location("All keys.", tagged=False), **documented_links("key_id", **_LINKS)}}


@routes.post(
    "",
    summary="Create an API key",
    status_code=201,
    responses={**_MADE, **documented_post_problems()},
    openapi_extra=IDEMPOTENT,
)
def create_key(state: StateDep, response: Response, request: KeyRequest) -> NewKey:
    """Creates a key of the caller's tenant; only this answer contains its secret text.

    Once a key exists, every request needs one, so the first key must have the scope admin.
    """
    lifetime = None if request.lifetime_s is None else timedelta(seconds=request.lifetime_s)
    by = state.call.caller.key_id
    keys.check_first(state.database, request.scopes)
    return _respond_with_new_key(
        state, response, keys.create(state.database, request.name, request.scopes, lifetime, by)
    )


@routes.get("", summary="List API keys", responses=documented_list("key_id", **_LINKS))
def list_keys(state: StateDep, window: WindowDep) -> Page[Key]:
    """Lists keys, newest first, including revoked and expired ones. Their secret text is not stored."""
    rows, next_cursor = keys.listing(state.database, window)
    return Page(items=[_key_schema(row) for row in rows], next_cursor=next_cursor)


@routes.post(
    "/{key_id}:rotate",
    summary="Replace an API key",
    status_code=201,
    responses={**_MADE, **documented_post_problems(404)},
    openapi_extra=IDEMPOTENT,
)
def rotate_key(state: StateDep, response: Response, key_id: PathId, request: RotateRequest) -> NewKey:
    """Creates a key with the same name, scopes and lifetime; the old one stays valid for ``grace_s`` seconds.

    Answers 409 if the old key is no longer valid.
    """
    grace = timedelta(seconds=request.grace_s)
    return _respond_with_new_key(state, response, keys.rotate(state.database, key_id, grace, state.call.caller.key_id))


@routes.delete("/{key_id:name}", summary="Revoke an API key", responses=documented_problems(404))
def revoke_key(state: StateDep, key_id: PathId) -> Key:
    """Revokes the key immediately and permanently; it stays in the list. Repeating the call changes nothing."""
    row = keys.revoke(state.database, key_id)
    state.gate.keys_changed()
    return _key_schema(row)


def _respond_with_new_key(state: AppState, response: Response, made: NewApiKey) -> NewKey:
    state.gate.keys_changed()
    response.headers["location"] = "/v1/keys"
    response.headers["cache-control"] = "no-store"
    return NewKey(**_key_schema(made.row).model_dump(), secret=made.text)


def _key_schema(row: KeyRow) -> Key:
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
