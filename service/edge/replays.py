"""``Idempotency-Key``: a POST that is sent again is answered with what it was answered at first.

A key is the caller's tenant's, for 24 hours by default. The first request takes the key, and what it answered with a status
of 2xx is kept with it; a request that was refused stored nothing and gives the key back. While the first one runs, another
is refused with 409. Should the service die between the work and the answer, the key is taken over after a minute; the work is
not done twice, because under a key the ids of what it makes are functions of the key (``State.new_id``).
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
from service.db import Change, Database
from service.models import ReplayRow, bound, now, table_of
from service.problems import ProblemError
from service.tenancy import PARAMETER

_LONGEST = 255
_TAKEN_FOR = timedelta(seconds=60)
_KEPT_HEADERS = ("content-type", "location", "etag")
SECRET_MEMBERS = ("secret",)
"""Members of answers that are never stored: a replay has null there."""


_replays = table_of(ReplayRow)
_HASTY = func.set_config("synchronous_commit", "off", True)
"""Of this statement alone: a server need not have a claim on its disk before the work begins. Its log is written in order, so
a crash that loses a claim loses all that came after it, too, and the request is one that was never answered."""
_TAKE: dict[bool, Insert] = {
    True: sqlite.insert(_replays).values(tenant=bindparam(PARAMETER)).on_conflict_do_nothing(),
    False: postgresql.insert(_replays).values(tenant=bindparam(PARAMETER)).on_conflict_do_nothing().returning(_HASTY),
}
_mine = (
    (_replays.c.id == bindparam("claim"))
    & (_replays.c.owner == bindparam("claimed_by"))
    & (_replays.c.tenant == bindparam(PARAMETER))
)
_KEEP = update(_replays).where(_mine).values(bound(_replays, "kept_", "status", "headers", "body"))
_GIVE_BACK = delete(_replays).where(_mine)


@dataclass(frozen=True, slots=True)
class Claim:
    """A request's hold on its key until it is answered."""

    id: str
    owner: str


def check_key(key: str) -> str:
    """The header's value; ``InputError`` unless it is 1 to 255 visible ASCII characters."""
    if not 1 <= len(key) <= _LONGEST or not all("!" <= letter <= "~" for letter in key):
        raise InputError("idempotency-key", key, f"1 to {_LONGEST} visible ASCII characters are expected")
    return key


def fingerprint(method: str, path: str, query: str, body: bytes) -> str:
    """What must be equal for a request to be the same one."""
    return hashlib.sha256(b"\0".join((method.encode(), path.encode(), query.encode(), body))).hexdigest()


def take(database: Database, key: str, print_: str, kept_s: float) -> Claim | None:
    """Hold the key for this request, which is the first with it; None where there was another (``take_over``)."""
    claim, moment = _claim(key), now()
    fresh = {
        "id": claim.id,
        "created_at": moment,
        "fingerprint": print_,
        "owner": claim.owner,
        "expires_at": moment + timedelta(seconds=kept_s),
    }
    return claim if database.execute((_TAKE[database.is_embedded], fresh)) else None


def take_over(database: Database, key: str, print_: str, kept_s: float) -> Claim | Response:
    """Answer the request with what is stored under its key, or hold a key that was given up; ``ProblemError`` 409 or 422."""
    claim, moment = _claim(key), now()
    with database.write() as session:
        stored = session.scalar(select(ReplayRow).where(ReplayRow.id == claim.id).with_for_update())
        if stored is None:  # given back since
            raise _in_progress()
        free = stored.expires_at <= moment or (stored.status is None and stored.created_at + _TAKEN_FOR <= moment)
        if not free and stored.fingerprint != print_:
            detail = "this Idempotency-Key was used with another method, path or body"
            raise ProblemError(422, "idempotency-key-reused", "The key belongs to another request", detail)
        if not free and stored.status is None:
            raise _in_progress()
        if not free:
            return _replayed(stored)
        _renew(stored, claim, print_, moment, moment + timedelta(seconds=kept_s))
        return claim


def settling(claim: Claim, answer: Response | None) -> tuple[Change, dict[str, object]]:
    """The statement that keeps the answer with the key, or gives the key back where there is none, and its values. It does
    nothing where all took so long that another request has taken the key."""
    mine: dict[str, object] = {"claim": claim.id, "claimed_by": claim.owner}
    if answer is None or not 200 <= answer.status_code < 300:
        return _GIVE_BACK, mine
    headers = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}
    body = _without_secrets(bytes(answer.body))
    return _KEEP, {**mine, "kept_status": answer.status_code, "kept_headers": headers, "kept_body": body}


def _claim(key: str) -> Claim:
    return Claim(hashlib.sha256(key.encode()).hexdigest(), secrets.token_hex(8))


def _in_progress() -> ProblemError:
    detail = "the first request with this Idempotency-Key is still being answered"
    return ProblemError(
        409, "idempotency-in-progress", "The request is being answered", detail, headers={"retry-after": "1"}
    )


def _replayed(row: ReplayRow) -> Response:
    headers: Mapping[str, Any] = row.headers or {}
    return Response(row.body, row.status or 200, {**headers, "idempotency-replayed": "true"})


def _renew(row: ReplayRow, claim: Claim, print_: str, moment: datetime, expires_at: datetime) -> None:
    row.created_at, row.expires_at, row.fingerprint, row.owner = moment, expires_at, print_, claim.owner
    row.status = row.headers = row.body = None


def _without_secrets(body: bytes) -> str:
    text = body.decode()
    document = json.loads(text) if text else None
    if isinstance(document, dict) and any(document.get(name) is not None for name in SECRET_MEMBERS):
        return json.dumps({key: None if key in SECRET_MEMBERS else value for key, value in document.items()})
    return text
