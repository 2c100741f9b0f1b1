"""Refuse options that would have no effect, instead of ignoring them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from autosbp.errors import InputError


def refuse_unused(command: Callable[..., Any], limit: str, **given: object) -> None:
    """Raise ``InputError`` for the first given option whose value is not the command's default.

    Args:
        command: the command, whose signature has the defaults.
        limit: what the option requires, or why it has no effect here.
        given: option values by parameter name.
    """
    parameters = inspect.signature(command).parameters
    for name, value in given.items():
        if value != parameters[name].default:
            shown = value if value is None or isinstance(value, (bool, int, float, list)) else str(value)
            raise InputError(name, shown, limit)
