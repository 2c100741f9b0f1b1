"""Reading documents that clients post."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from autosbp.errors import AutosbpError, InputError

_log = logging.getLogger(__name__)
Read = TypeVar("Read")


MAX_NAME = 512
"""Characters of a name that lists are filtered by: PostgreSQL indexes no longer text."""


def check_name(field: str, name: str) -> str:
    """``name``, or ``InputError`` where it is too long to be stored."""
    if len(name) > MAX_NAME:
        raise InputError(field, name, f"at most {MAX_NAME} characters are stored")
    return name


def read(what: str, reader: Callable[[Any], Read], body: object) -> Read:
    """``reader(body)``; every failure is the document's, so one that the reader did not foresee is ``InputError`` too.

    The log gets the unforeseen ones, because the reader could have named the field.
    """
    try:
        return reader(body)
    except AutosbpError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        _log.warning("a %s document is malformed in a way that its reader does not name", what, exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        raise InputError("body", reason, f"a well-formed {what} document is expected") from None
