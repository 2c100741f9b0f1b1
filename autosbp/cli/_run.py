"""What every command shares: exit codes, error lines, standard output and standard error."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from autosbp.errors import AutosbpError, InfeasibleError, InputError

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130
GATE_FAILED = 1
OUTPUT_CLOSED = 128 + signal.SIGPIPE
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_MIN_WIDTH = 120


def guarded(command: Callable[..., int | None]) -> Callable[..., None]:
    """The command with DESIGN section 10's exit codes: what it returns, what its error says, or 130.

    An error is one line ``error: ...`` on standard error; what follows its first line, such as the end of a log, comes
    after it. Under ``--json`` it is an object on standard output, too. Output that cannot be written is an error; that nobody
    reads any more ends the command quietly, as a signal would.
    """

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        try:
            code = _told(command, arguments)
            sys.stdout.flush()
        except BrokenPipeError:  # who reads the output has seen enough
            _write_no_more()
            code = OUTPUT_CLOSED
        except OSError as error:
            if error.errno not in _FULL or error.filename is not None:
                raise
            _write_no_more()
            note(f"error: standard output cannot be written: {error.strerror}")
            code = InputError.exit_code
        raise typer.Exit(code or 0)

    return run


def _told(command: Callable[..., int | None], arguments: Mapping[str, Any]) -> int | None:
    """The command's exit code, with its error told."""
    try:
        return command(**arguments)
    except AutosbpError as error:
        head, _, rest = str(error).partition("\n")
        note(f"error: {head}")
        if rest:
            note(rest)
        if arguments.get("as_json"):
            print_json(error_document(error))
        return error.exit_code
    except KeyboardInterrupt:
        note("interrupted")
        return INTERRUPTED


def _write_no_more() -> None:
    """Let what is left of the output go nowhere: Python writes it at its end, too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


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
