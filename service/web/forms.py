"""Forms as browsers send them, read as strictly as JSON bodies are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from autosbp.errors import InputError

_MOST_FIELDS = 200


@dataclass(frozen=True, slots=True)
class Form:
    """The fields that were filled in; empty ones are absent."""

    fields: Mapping[str, str]

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
    return Form.parse(await request.body())


FormDep = Annotated[Form, Depends(_form)]
