"""Schemas of API keys and the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from autosbp.service.schemas._base import NO_NUL, Request, Response

_DAY_S = 86_400.0
_LONGEST_S = 3650 * _DAY_S
KeyScope = Literal["read", "search", "trial", "calibrate", "admin"]


class KeyRequest(Request):
    """Request to create an API key of the caller's tenant."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=NO_NUL)]
    scopes: list[KeyScope] = Field(min_length=1, max_length=5)
    lifetime_s: float | None = Field(
        default=90 * _DAY_S, gt=0, le=_LONGEST_S, description=("Seconds until the key expires; null: never.")
    )


class RotateRequest(Request):
    """Request to replace a key."""

    grace_s: float = Field(
        default=3600.0, ge=0, le=30 * _DAY_S, description=("Seconds for which the old key stays valid.")
    )


class Key(Response):
    """An API key, without its secret text."""

    id: str = Field(examples=["key-0a1b2c3d4e5f6071"])
    name: str
    prefix: str = Field(description="The key starts with asbp_ followed by this prefix.")
    scopes: list[KeyScope]
    state: Literal["valid", "expired", "revoked"]
    created_by: str | None = Field(description="Id of the key that created this one; null for the command line.")
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class NewKey(Key):
    """A newly created key with its secret text."""

    secret: str | None = Field(description="The complete key, returned only once; null in replayed responses.")


class AuditEntry(Response):
    """A call that changed something or was refused."""

    id: str
    created_at: datetime
    caller: str | None = Field(description="Id of the API key; null if none was required.")
    address: str
    method: str
    path: str
    status: int
    request_id: str
    location: str | None = Field(description="Location header of the response.")
