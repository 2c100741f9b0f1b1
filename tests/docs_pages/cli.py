"""``docs/reference/cli.md``: every command with its arguments and options, as ``--help`` has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from autosbp.cli import app
from tests.docs_pages.markdown import heading, plain, table

INTRODUCTION = """Every command of the program `autosbp`. `autosbp COMMAND --help` prints the same.

Logs and progress go to standard error. With `--json`, a command prints one JSON object on standard output and nothing else.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | success |
| 1 | a gate failed (`trial`), or a worker is not healthy (`work --check`) |
| 2 | wrong usage or bad input: the message names the field, the value and the limit |
| 3 | infeasible: no strategy meets the constraints; the message names a minimal conflicting set |
| 4 | a trial or a calibration failed |
| 5 | service error: it cannot be reached, it refuses the request, or another process already uses its data |
| 129, 130, 143 | ended by SIGHUP, SIGINT or SIGTERM |
| 141 | the reader of the output has closed it (SIGPIPE) |
"""


def cli_page() -> str:
    """The whole page."""
    program = typer.main.get_command(app)
    parts = [heading("Command line", "the commands in `autosbp/cli`", INTRODUCTION)]
    for name, command in _commands(program, "autosbp"):
        parts.append(_section(name, command))
    return "\n".join(parts)


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _section(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    parameters = [each for each in command.get_params(context) if each.name != "help"]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option"]
    usage = " ".join([name, *(_usage(each) for each in arguments), *(["[OPTIONS]"] if options else [])])
    parts = [f"## {name.removeprefix('autosbp ')}\n", f"    {usage}\n"]
    parts += [f"{plain(' '.join(each.split()))}\n" for each in (command.help or "").split("\n\n")]
    if arguments:
        parts.append(table(["argument", "meaning"], [_row(each, context) for each in arguments]))
    if options:
        parts.append(table(["option", "meaning"], [_row(each, context) for each in options]))
    return "\n".join(parts)


def _usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    name = name if argument.nargs == 1 else f"{name}..."
    return str(name if argument.required else f"[{name}]")


def _row(parameter: Any, context: Any) -> list[str]:
    left, right = parameter.get_help_record(context)
    return [f"`{left.replace('<', '').replace('>', '')}`", plain(right)]
