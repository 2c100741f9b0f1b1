"""Forms as browsers send them, read as strictly as JSON bodies are."""

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
)  # of a form without files: a configuration of a MiB, each byte of which may be sent as three


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was chosen in a form: its name as the browser says it, and its content."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Form:
    """The fields that were filled in, and the files that were chosen; empty ones are absent."""

    fields: Mapping[str, str]
    files: Mapping[str, Upload] = field(default_factory=dict)

    @staticmethod
    def parse(body: bytes) -> Form:
        """``InputError`` for what is no form in UTF-8."""
        try:
            pairs = parse_qsl(body.decode(), strict_parsing=bool(body), max_num_fields=_MOST_FIELDS, errors="strict")
        except ValueError as error:
            raise InputError("form", str(error), "fields in UTF-8 are expected") from None
        return Form({name: value.strip() for name, value in pairs if value.strip()})

    def text(self, name: str) -> str | None:
        """A field, or None."""
        return self.fields.get(name)

    def integer(self, name: str) -> int | None:
        """``InputError`` for what is no whole number."""
        given = self.fields.get(name)
        try:
            return None if given is None else int(given.replace(",", "").replace("_", ""))
        except ValueError:
            raise InputError(name, given, "a whole number is expected") from None

    def number(self, name: str) -> float | None:
        """``InputError`` for what is no number."""
        given = self.fields.get(name)
        try:
            return None if given is None else float(given)
        except ValueError:
            raise InputError(name, given, "a number is expected") from None


async def _form(request: Request) -> Form:
    kind, _, parameters = request.headers.get("content-type", "").lower().partition(";")
    if kind.strip() != WITH_FILES:
        body = await request.body()
        if len(body) > _MOST_TYPED_BYTES:
            raise InputError(
                "form", f"{len(body)} bytes", f"at most {_MOST_TYPED_BYTES} bytes are expected of {kind.strip()}"
            )
        return Form.parse(body)
    if "charset" in parameters:
        raise InputError("form", kind, "fields in UTF-8 are expected, and no charset of another kind")
    most_bytes = request.app.state.service.settings.max_body_bytes  # of the body; so a part needs no smaller limit
    try:
        async with request.form(max_files=_MOST_FILES, max_fields=_MOST_FIELDS, max_part_size=most_bytes) as parts:
            given = parts.multi_items()
            texts = {name: one.strip() for name, one in given if isinstance(one, str) and one.strip()}
            chosen = {name: one for name, one in given if isinstance(one, UploadFile) and one.filename}
            files = {name: Upload(str(one.filename), await one.read()) for name, one in chosen.items()}
    except HTTPException as error:
        if error.status_code != 400:
            raise
        raise InputError("form", str(error.detail), "the parts of a browser's form are expected") from None
    return Form(texts, files)


FormDep = Annotated[Form, Depends(_form)]
