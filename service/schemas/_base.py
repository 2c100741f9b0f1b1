"""Shared pieces of the schemas: strictness, ids, pages, problems."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Self, TypeVar

from fastapi import Depends, Path, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from autosbp.errors import InputError
from service.services._documents import MAX_NAME
from service.services._window import CURSOR_PATTERN, Window

Item = TypeVar("Item", bound=BaseModel)
ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
PathId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the resource.")]
BodyId = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
QueryId = Annotated[str | None, Query(pattern=ID_PATTERN)]
NO_NUL = r"^[^\x00]*$"
"""PostgreSQL holds no text with a NUL character."""
Name = Annotated[str | None, Query(max_length=MAX_NAME, pattern=NO_NUL)]


def input_error(error: Mapping[str, Any]) -> InputError:
    """One of pydantic's errors as ours; the field's path leaves out the part of the request that it is in."""
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
        """To JSON Schema, and to JavaScript, 2.0 is an integer. Of a million members that are not known the first alone is
        looked at, which the refusal names: all would take seconds, in which nothing else is done."""
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
        """Validate a body; raises ``InputError``."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise input_error(error.errors()[0]) from None


class Response(BaseModel):
    """Base of response bodies, read from rows."""

    model_config = ConfigDict(from_attributes=True)


class Page(BaseModel, Generic[Item]):
    """One page of a list, newest first."""

    items: list[Item]
    next_cursor: str | None = Field(description="Pass it as ``cursor`` for the next page; null on the last.")


class Problem(BaseModel):
    """Problem details (RFC 9457); some types carry extension members."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "type": "urn:autosbp:problem:invalid-input",
                "title": "A value is not accepted",
                "status": 422,
                "detail": "levels[0].count: 0 is not accepted; an integer in [1, 1048576] is expected",
                "instance": "/v1/clusters",
                "field": "levels[0].count",
                "value": 0,
                "limit": "an integer in [1, 1048576] is expected",
            }
        },
    )

    type: str = Field(description="``urn:autosbp:problem:NAME``, or ``about:blank``.")
    title: str
    status: int
    detail: str
    instance: str | None


Document = dict[str, Any]


def _no_number(value: object) -> object:
    """Seconds since 1970 would be read as a moment, too."""
    if isinstance(value, str) and not re.match(r"\s*\d{4}-", value):
        raise ValueError("a date and time such as 2026-01-31T12:00:00Z is expected")
    return value


Moment = Annotated[datetime, BeforeValidator(_no_number)]


async def window(
    limit: Annotated[int, Query(ge=1, le=200, description="Items per page.")] = 50,
    cursor: Annotated[
        str | None,
        Query(pattern=CURSOR_PATTERN, description="``next_cursor`` of the page before; newest items come first."),
    ] = None,
    created_after: Annotated[Moment | None, Query(description="This moment or later.")] = None,
    created_before: Annotated[Moment | None, Query(description="Before this moment.")] = None,
) -> Window:
    """The part of a list that a request asks for; a moment without a zone is in UTC."""
    return Window(limit, cursor, _zoned(created_after), _zoned(created_before))


def _zoned(moment: datetime | None) -> datetime | None:
    """In UTC; what is before the year 1 or after the year 9999 there becomes the first or last moment."""
    if moment is None or moment.tzinfo is None:
        return None if moment is None else moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        edge = datetime.min if moment.year == 1 else datetime.max
        return edge.replace(tzinfo=UTC)


WindowDep = Annotated[Window, Depends(window)]
