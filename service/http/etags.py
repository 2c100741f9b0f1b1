"""ETags and conditional requests (RFC 9110, section 13)."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Response

from autosbp.service.problem_details import precondition_failed

IfMatch = Annotated[
    str | None, Header(max_length=1000, description="Execute only if the resource's ETag is one of these.")
]


def set_etag(response: Response, *parts: object) -> None:
    """Set a response's ETag; ``parts`` identify the version of the resource."""
    response.headers["etag"] = etag(*parts)


def etag(*parts: object) -> str:
    """Build a strong ETag."""
    return f'"{".".join(map(str, parts))}"'


def matches_if_none_match(if_none_match: str | None, current: str) -> bool:
    """Whether the client has this version; weak comparison."""
    return _header_has_tag(if_none_match, current, weak=True)


def check_if_match(if_match: str | None, current: str) -> None:
    """Raise ``ProblemError`` 412 if the request has an If-Match condition that the resource does not meet."""
    if if_match is not None and not _header_has_tag(if_match, current, weak=False):
        raise precondition_failed(f"the resource's current ETag is {current}, not {if_match}")


def _header_has_tag(header: str | None, current: str, *, weak: bool) -> bool:
    tags = [each.strip() for each in (header or "").split(",")]
    return "*" in tags or current in ([each.removeprefix("W/") for each in tags] if weak else tags)
