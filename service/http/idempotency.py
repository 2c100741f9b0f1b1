"""``Idempotency-Key``: a repeated POST gets the answer of the first one.

A key belongs to the caller's tenant and is kept for 24 hours by default. The first request claims the key. A 2xx answer
is stored with it; a refused request stored nothing and releases the key. While the first request runs, others with the
key get 409. If the service dies before answering, the key can be claimed again after a minute. The work is still not
done twice, because ids created under a key are functions of the key (``AppState.new_id``).
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from fastapi import Response
from sqlalchemy import Insert, bindparam, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from autosbp.errors import InputError
from autosbp.service.db import Change, Database
from autosbp.service.models import ReplayRow, bind_parameters, now, table_of
from autosbp.service.problem_details import ProblemError
from autosbp.service.tenancy import TENANT_PARAMETER

_MAX_KEY_CHARS = 255
_CLAIM_TIMEOUT = timedelta(seconds=60)
_KEPT_HEADERS = ("content-type", "location", "etag")
SECRET_MEMBERS = ("secret",)
"""Members of answers that are never stored; a replayed answer has null there."""


_replays = table_of(ReplayRow)
_ASYNC_COMMIT = func.set_config("synchronous_commit", "off", True)
"""Switches synchronous commit off for this statement's transaction.

A claim need not be on the server's disk before the work begins: PostgreSQL writes its log in order, so a crash that
loses a claim also loses everything after it, and the request was never answered.
"""
_TAKE: dict[bool, Insert] = {
    True: sqlite.insert(_replays).values(tenant=bindparam(TENANT_PARAMETER)).on_conflict_do_nothing(),
    False: postgresql.insert(_replays)
    .values(tenant=bindparam(TENANT_PARAMETER))
    .on_conflict_do_nothing()
    .returning(_ASYNC_COMMIT),
}
_owned_by_claim = (
    (_replays.c.id == bindparam("claim"))
    & (_replays.c.owner == bindparam("claimed_by"))
    & (_replays.c.tenant == bindparam(TENANT_PARAMETER))
)
_STORE_ANSWER = (
    update(_replays).where(_owned_by_claim).values(bind_parameters(_replays, "kept_", "status", "headers", "body"))
)
_RELEASE_KEY = delete(_replays).where(_owned_by_claim)


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """A request's claim on its key until it is answered."""

    id: str
    owner: str


def check_key(key: str) -> str:
    """Return the header's value; raise ``InputError`` unless it is 1 to 255 visible ASCII characters."""
    if not 1 <= len(key) <= _MAX_KEY_CHARS or not all("!" <= letter <= "~" for letter in key):
        raise InputError("idempotency-key", key, f"expected 1 to {_MAX_KEY_CHARS} visible ASCII characters")
    return key


def fingerprint(method: str, path: str, query: str, body: bytes) -> str:
    """Hash of everything that must be equal in a repeated request."""
    found = hashlib.sha256(b"\0".join((method.encode(), path.encode(), query.encode(), b"")))
    found.update(body)  # a separate update, so that a large body is not copied
    return found.hexdigest()


def claim_key(database: Database, key: str, print_: str, kept_s: float) -> KeyClaim | None:
    """Claim the key for the first request with it; None if there was another one (see ``replay_or_reclaim``)."""
    claim, moment = _claim(key), now()
    fresh = {
        "id": claim.id,
        "created_at": moment,
        "fingerprint": print_,
        "owner": claim.owner,
        "expires_at": moment + timedelta(seconds=kept_s),
    }
    return claim if database.execute((_TAKE[database.is_sqlite], fresh)) else None


def replay_or_reclaim(database: Database, key: str, print_: str, kept_s: float) -> KeyClaim | Response:
    """Return the stored answer of a key, or claim an expired or abandoned key.

    Raises ``ProblemError`` 409 while the first request runs, and 422 if it differed from this one.
    """
    claim, moment = _claim(key), now()
    with database.write() as session:
        stored = session.scalar(select(ReplayRow).where(ReplayRow.id == claim.id).with_for_update())
        if stored is None:  # released meanwhile
            raise _in_progress()
        free = stored.expires_at <= moment or (stored.status is None and stored.created_at + _CLAIM_TIMEOUT <= moment)
        if not free and stored.fingerprint != print_:
            detail = "this Idempotency-Key was used with a different method, path or body"
            raise ProblemError(422, "idempotency-key-reused", "Idempotency-Key reused for another request", detail)
        if not free and stored.status is None:
            raise _in_progress()
        if not free:
            return _replayed(stored)
        _renew(stored, claim, print_, moment, moment + timedelta(seconds=kept_s))
        return claim


def settle_statement(claim: KeyClaim, answer: Response | None) -> tuple[Change, dict[str, object]]:
    """Build the statement, with its values, that stores the answer or, without a 2xx answer, releases the key.

    It changes nothing if another request has claimed the key meanwhile.
    """
    mine: dict[str, object] = {"claim": claim.id, "claimed_by": claim.owner}
    if answer is None or not 200 <= answer.status_code < 300:
        return _RELEASE_KEY, mine
    headers = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}
    body = _without_secrets(bytes(answer.body))
    return _STORE_ANSWER, {**mine, "kept_status": answer.status_code, "kept_headers": headers, "kept_body": body}


def _claim(key: str) -> KeyClaim:
    return KeyClaim(hashlib.sha256(key.encode()).hexdigest(), secrets.token_hex(8))


def _in_progress() -> ProblemError:
    detail = "the first request with this Idempotency-Key is still in progress"
    return ProblemError(
        409, "idempotency-in-progress", "The request is in progress", detail, headers={"retry-after": "1"}
    )


def _replayed(row: ReplayRow) -> Response:
    headers: Mapping[str, Any] = row.headers or {}
    return Response(row.body, row.status or 200, {**headers, "idempotency-replayed": "true"})


def _renew(row: ReplayRow, claim: KeyClaim, print_: str, moment: datetime, expires_at: datetime) -> None:
    row.created_at, row.expires_at, row.fingerprint, row.owner = moment, expires_at, print_, claim.owner
    row.status = row.headers = row.body = None


def _without_secrets(body: bytes) -> str:
    text = body.decode()
    document = json.loads(text) if text else None
    if isinstance(document, dict) and any(document.get(name) is not None for name in SECRET_MEMBERS):
        return json.dumps({key: None if key in SECRET_MEMBERS else value for key, value in document.items()})
    return text
