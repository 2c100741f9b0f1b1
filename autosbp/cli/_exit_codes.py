"""Exit codes, error messages and output streams that all commands share."""

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
_WRITE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_MIN_WIDTH = 120


def with_exit_codes(command: Callable[..., int | None]) -> Callable[..., None]:
    """Wrap a command so that it exits with the documented code: its return value, its error's code, or 130 on Ctrl-C.

    An error prints one line ``error: ...`` on standard error, followed by the rest of its message, such as the end of a
    log. With ``--json`` it is also an object on standard output. Failing to write standard output is an error, except
    when its reader has closed the pipe: then the command ends quietly, as SIGPIPE would end it.
    """

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        try:
            code = _run_and_report_errors(command, arguments)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, such as ``head``, closed the pipe
            _discard_stdout()
            code = OUTPUT_CLOSED
        except OSError as error:
            if error.errno not in _WRITE_ERRNOS or error.filename is not None:
                raise
            _discard_stdout()
            note(f"error: cannot write to standard output: {error.strerror}")
            code = InputError.exit_code
        raise typer.Exit(code or 0)

    return run


def _run_and_report_errors(command: Callable[..., int | None], arguments: Mapping[str, Any]) -> int | None:
    """Run the command and print its error, if any; returns the exit code."""
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


def _discard_stdout() -> None:
    """Redirect standard output to /dev/null, because Python flushes it again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def error_document(error: AutosbpError) -> dict[str, Any]:
    """``{"error": {...}}``: class, message, exit code, and the fields that name the value or constraint at fault."""
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
    """Print one line for people (progress, logs, errors) on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_json(document: Mapping[str, Any]) -> None:
    """Print the one JSON object of a command."""
    sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")


def console() -> Console:
    """Console on standard output for tables: no markup in cells, and at least 120 columns when piped."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() else max(_MIN_WIDTH, shutil.get_terminal_size().columns)
    return Console(file=sys.stdout, markup=False, emoji=False, highlight=False, width=wide)
