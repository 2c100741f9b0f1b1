"""Options that would have no effect are refused by name, not dropped in silence."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from autosbp.errors import InputError


def refuse_unused(command: Callable[..., Any], limit: str, **given: object) -> None:
    """Refuse the first of these options of a command whose value is not its default; ``limit`` says what it needs, or why it
    cannot do anything here."""
    parameters = inspect.signature(command).parameters
    for name, value in given.items():
        if value != parameters[name].default:
            shown = value if value is None or isinstance(value, (bool, int, float, list)) else str(value)
            raise InputError(name, shown, limit)
