"""What every command shares: exit codes, error lines, standard output and standard error."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from autosbp.errors import AutosbpError, InfeasibleError, InputError

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130
GATE_FAILED = 1
_MIN_WIDTH = 120


def guarded(command: Callable[..., int | None]) -> Callable[..., None]:
    """The command with DESIGN section 10's exit codes: what it returns, what its error says, or 130.

    An error is one line ``error: ...`` on standard error; what follows its first line, such as the end of a log, comes
    after it. Under ``--json`` it is an object on standard output, too.
    """

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        try:
            code = command(**arguments)
        except AutosbpError as error:
            head, _, rest = str(error).partition("\n")
            note(f"error: {head}")
            if rest:
                note(rest)
            if arguments.get("as_json"):
                print_json(error_document(error))
            code = error.exit_code
        except KeyboardInterrupt:
            note("interrupted")
            code = INTERRUPTED
        raise typer.Exit(code or 0)

    return run


def error_document(error: AutosbpError) -> dict[str, Any]:
    """``{"error": {...}}``: class, message, and the members by which the error names a value or a constraint."""
    members: dict[str, Any] = {}
    if isinstance(error, InputError):
        members = {"field": error.field, "value": error.value, "limit": error.limit}
    elif isinstance(error, InfeasibleError):
        members = {"constraint": error.constraint, "limit": error.limit, "needed": error.needed}
        members |= {"conflict": list(error.conflict)} if error.conflict else {}
    plain = {key: value if _is_plain(value) else repr(value)[:200] for key, value in members.items()}
    return {"error": {"type": type(error).__name__, "message": str(error), "exit_code": error.exit_code, **plain}}


def _is_plain(value: object) -> bool:
    try:
        return len(json.dumps(value, allow_nan=False)) <= 1000
    except (TypeError, ValueError):
        return False


def note(text: str) -> None:
    """One line for people: progress, logs, errors."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_json(document: Mapping[str, Any]) -> None:
    """The one JSON object of a command."""
    sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")


def console() -> Console:
    """Standard output for tables; nothing in a cell is read as markup, and pipes get wide lines."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() else max(_MIN_WIDTH, shutil.get_terminal_size().columns)
    return Console(file=sys.stdout, markup=False, emoji=False, highlight=False, width=wide)
