"""API keys and the audit log at the edge."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from service.schemas._base import NO_NUL, Request, Response

_DAY_S = 86_400.0
_LONGEST_S = 3650 * _DAY_S
KeyScope = Literal["read", "search", "trial", "calibrate", "admin"]


class KeyRequest(Request):
    """Ask for an API key of the caller's own tenant."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=NO_NUL)]
    scopes: list[KeyScope] = Field(min_length=1, max_length=5)
    lifetime_s: float | None = Field(default=90 * _DAY_S, gt=0, le=_LONGEST_S, description="null: it does not expire.")


class RotateRequest(Request):
    """Replace a key."""

    grace_s: float = Field(default=3600.0, ge=0, le=30 * _DAY_S, description="Seconds for which the old key works on.")


class Key(Response):
    """A key, without its text."""

    id: str = Field(examples=["key-0a1b2c3d4e5f6071"])
    name: str
    prefix: str = Field(description="The key's text begins with asbp_ and this.")
    scopes: list[KeyScope]
    state: Literal["valid", "expired", "revoked"]
    created_by: str | None = Field(description="The key that made it; null for the command line.")
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class NewKey(Key):
    """A key that was just made."""

    secret: str | None = Field(
        description="The key's whole text. It is shown this once; null where an answer is replayed."
    )


class AuditEntry(Response):
    """One call that changed something or was refused."""

    id: str
    created_at: datetime
    caller: str | None = Field(description="The key's id; null where no key was needed.")
    address: str
    method: str
    path: str
    status: int
    request_id: str
    location: str | None = Field(description="Where the answer said the result is.")
