"""Shared parts of the schemas: strict validation, ids, pages, problems."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Self, TypeVar

from fastapi import Depends, Path, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from autosbp.errors import InputError
from autosbp.service.services._list_page import CURSOR_PATTERN, ListPage
from autosbp.service.services._posted_documents import MAX_NAME

Item = TypeVar("Item", bound=BaseModel)
ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
PathId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the resource.")]
BodyId = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
QueryId = Annotated[str | None, Query(pattern=ID_PATTERN)]
NO_NUL = r"^[^\x00]*$"
"""Excludes NUL characters, which PostgreSQL cannot store."""
Name = Annotated[str | None, Query(max_length=MAX_NAME, pattern=NO_NUL)]


def input_error(error: Mapping[str, Any]) -> InputError:
    """Convert a pydantic error to ours; the field's path omits the part of the request (body, query, ...)."""
    where = [str(part) for part in error["loc"]]
    named = where[1:] if where[:1] in (["body"], ["query"], ["path"], ["header"]) else where
    value = None if error["type"] == "missing" else error.get("input")
    return InputError(".".join(named) or "body", value, error["msg"])


class Request(BaseModel):
    """Base of request bodies: unknown members and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, body: object) -> object:
        """Accept 2.0 as an integer, as JSON Schema and JavaScript do, and drop all but one unknown member.

        The refusal names only the first unknown member; validating a million of them would block the service for
        seconds.
        """
        if not isinstance(body, dict):
            return body
        known = cls.model_fields.keys()
        if len(body) > len(known):
            strange = next(key for key in body if key not in known)
            body = {key: body[key] for key in (*known, strange) if key in body}
        return {
            key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in body.items()
        }

    @classmethod
    def read(cls, body: object) -> Self:
        """Validate a body; raise ``InputError``."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise input_error(error.errors()[0]) from None


class Response(BaseModel):
    """Base of response bodies, filled from database rows."""

    model_config = ConfigDict(from_attributes=True)


class Page(BaseModel, Generic[Item]):
    """One page of a list, newest first."""

    items: list[Item]
    next_cursor: str | None = Field(description="Pass as ``cursor`` to get the next page; null on the last page.")


class Problem(BaseModel):
    """Problem details (RFC 9457); some types have extension members."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "type": "urn:autosbp:problem:invalid-input",
                "title": "Invalid value",
                "status": 422,
                "detail": "levels[0].count: 0 is invalid: expected an integer in [1, 1048576]",
                "instance": "/v1/clusters",
                "field": "levels[0].count",
                "value": 0,
                "limit": "expected an integer in [1, 1048576]",
            }
        },
    )

    type: str = Field(description="``urn:autosbp:problem:NAME``, or ``about:blank``.")
    title: str
    status: int
    detail: str
    instance: str | None


Document = dict[str, Any]


def _refuse_numbers(value: object) -> object:
    """Refuse numbers, which pydantic would read as seconds since 1970."""
    if isinstance(value, str) and not re.match(r"\s*\d{4}-", value):
        raise ValueError("expected a date and time such as 2026-01-31T12:00:00Z")
    return value


Timestamp = Annotated[datetime, BeforeValidator(_refuse_numbers)]


async def window(
    limit: Annotated[int, Query(ge=1, le=200, description="Items per page.")] = 50,
    cursor: Annotated[
        str | None,
        Query(pattern=CURSOR_PATTERN, description="``next_cursor`` of the previous page; newest items come first."),
    ] = None,
    created_after: Annotated[Timestamp | None, Query(description="At or after this time.")] = None,
    created_before: Annotated[Timestamp | None, Query(description="Before this time.")] = None,
) -> ListPage:
    """Window of a list that a request selects; times without a zone are UTC."""
    return ListPage(limit, cursor, _to_utc(created_after), _to_utc(created_before))


def _to_utc(moment: datetime | None) -> datetime | None:
    """Convert to UTC, clamped to the years 1 to 9999."""
    if moment is None or moment.tzinfo is None:
        return None if moment is None else moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        edge = datetime.min if moment.year == 1 else datetime.max
        return edge.replace(tzinfo=UTC)


WindowDep = Annotated[ListPage, Depends(window)]
