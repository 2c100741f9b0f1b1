"""ETags and the requests that depend on them (RFC 9110, section 13)."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Response

from service.problems import changed

IfMatch = Annotated[
    str | None, Header(max_length=1000, description="Do it only if the resource's ETag is still one of these.")
]


def tag(response: Response, *parts: object) -> None:
    """Give a response its ETag; ``parts`` say which version of the resource it shows."""
    response.headers["etag"] = etag(*parts)


def etag(*parts: object) -> str:
    """A strong ETag."""
    return f'"{".".join(map(str, parts))}"'


def is_known(if_none_match: str | None, current: str) -> bool:
    """Whether the client has this version; the comparison is weak."""
    return _names(if_none_match, current, weak=True)


def expect(if_match: str | None, current: str) -> None:
    """``ProblemError`` 412 unless the request has no condition or one that the resource meets."""
    if if_match is not None and not _names(if_match, current, weak=False):
        raise changed(f"the resource's ETag is {current} now, not {if_match}")


def _names(header: str | None, current: str, *, weak: bool) -> bool:
    tags = [each.strip() for each in (header or "").split(",")]
    return "*" in tags or current in ([each.removeprefix("W/") for each in tags] if weak else tags)
