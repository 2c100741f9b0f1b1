"""Parsing of HTML forms, as strict as that of JSON bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from autosbp.errors import InputError

WITH_FILES = "multipart/form-data"
_MOST_FIELDS, _MOST_FILES = 200, 4
_MOST_TYPED_BYTES = (
    4 * 2**20
)  # of a form without files: a configuration of 1 MiB whose bytes may be percent-encoded as three


@dataclass(frozen=True, slots=True)
class Upload:
    """An uploaded file: its name according to the browser, and its content."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Form:
    """The non-empty fields and uploaded files of a form."""

    fields: Mapping[str, str]
    files: Mapping[str, Upload] = field(default_factory=dict)

    @staticmethod
    def parse(body: bytes) -> Form:
        """Parse a URL-encoded form; raise ``InputError`` if it is malformed or not UTF-8."""
        try:
            pairs = parse_qsl(body.decode(), strict_parsing=bool(body), max_num_fields=_MOST_FIELDS, errors="strict")
        except ValueError as error:
            raise InputError("form", str(error), "expected fields in UTF-8") from None
        return Form({name: value.strip() for name, value in pairs if value.strip()})

    def text(self, name: str) -> str | None:
        """A field's text, or None."""
        return self.fields.get(name)

    def integer(self, name: str) -> int | None:
        """A field's integer, or None; raise ``InputError`` if it is not one."""
        given = self.fields.get(name)
        try:
            return None if given is None else int(given.replace(",", "").replace("_", ""))
        except ValueError:
            raise InputError(name, given, "expected a whole number") from None

    def number(self, name: str) -> float | None:
        """A field's number, or None; raise ``InputError`` if it is not one."""
        given = self.fields.get(name)
        try:
            return None if given is None else float(given)
        except ValueError:
            raise InputError(name, given, "expected a number") from None


async def _form(request: Request) -> Form:
    kind, _, parameters = request.headers.get("content-type", "").lower().partition(";")
    if kind.strip() != WITH_FILES:
        body = await request.body()
        if len(body) > _MOST_TYPED_BYTES:
            raise InputError(
                "form", f"{len(body)} bytes", f"expected at most {_MOST_TYPED_BYTES} bytes of {kind.strip()}"
            )
        return Form.parse(body)
    if "charset" in parameters:
        raise InputError("form", kind, "expected fields in UTF-8 and no other charset")
    most_bytes = request.app.state.service.settings.max_body_bytes  # the limit of the whole body also limits each part
    try:
        async with request.form(max_files=_MOST_FILES, max_fields=_MOST_FIELDS, max_part_size=most_bytes) as parts:
            given = parts.multi_items()
            texts = {name: one.strip() for name, one in given if isinstance(one, str) and one.strip()}
            chosen = {name: one for name, one in given if isinstance(one, UploadFile) and one.filename}
            files = {name: Upload(str(one.filename), await one.read()) for name, one in chosen.items()}
    except HTTPException as error:
        if error.status_code != 400:
            raise
        raise InputError("form", str(error.detail), "expected a valid multipart form") from None
    return Form(texts, files)


FormDep = Annotated[Form, Depends(_form)]
