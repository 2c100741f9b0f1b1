"""Parsing of documents that clients post."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from autosbp.errors import AutosbpError, InputError

_log = logging.getLogger(__name__)
Read = TypeVar("Read")


MAX_NAME = 512
"""Maximum characters of a name that lists filter by; PostgreSQL cannot index longer text."""


def check_name(field: str, name: str) -> str:
    """Return ``name``; raise ``InputError`` if it is too long to be stored."""
    if len(name) > MAX_NAME:
        raise InputError(field, name, f"expected at most {MAX_NAME} characters")
    return name


def read(what: str, reader: Callable[[Any], Read], body: object) -> Read:
    """Return ``reader(body)``; turn every failure into ``InputError``, also one that the reader did not foresee.

    Unforeseen failures are logged, because the reader should have named the field.
    """
    try:
        return reader(body)
    except AutosbpError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        _log.warning("the reader of a malformed %s document raised an unexpected error", what, exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        raise InputError("body", reason, f"expected a well-formed {what} document") from None
