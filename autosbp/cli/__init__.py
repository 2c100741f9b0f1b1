"""The command line (DESIGN section 10). Commands import what they need when they run: ``--help`` is instant.

Exit codes: 0 done, 1 a gate failed, 2 wrong use or bad input, 3 infeasible, 4 a trial or calibration failed, 5 the
service cannot be reached, 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from autosbp import __version__
from autosbp.cli._audit import audit
from autosbp.cli._calibrate import calibrate
from autosbp.cli._capture import capture
from autosbp.cli._clusters import clusters
from autosbp.cli._demo import demo
from autosbp.cli._diff import diff
from autosbp.cli._estimate import estimate
from autosbp.cli._explain import explain
from autosbp.cli._export import export
from autosbp.cli._keys import app as keys
from autosbp.cli._learn import learn
from autosbp.cli._plan import plan
from autosbp.cli._run import guarded
from autosbp.cli._serve import serve, work
from autosbp.cli._trial import trial

app = typer.Typer(
    name="autosbp",
    help="Find, explain and run the fastest way to train a PyTorch model on a GPU cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (
    capture,
    estimate,
    plan,
    clusters,
    calibrate,
    learn,
    explain,
    diff,
    trial,
    export,
    serve,
    work,
    audit,
    demo,
):
    app.command(_command.__name__)(guarded(_command))
app.add_typer(keys)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autosbp {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself."""


def _terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """SIGTERM and SIGHUP unwind like SIGINT does, so that ranks and jobs started here are ended."""
    sys.exit(128 + number)


def main() -> None:
    """The ``autosbp`` program."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # such as by nohup
            signal.signal(number, _terminate)
    app(prog_name="autosbp")  # however it was started
