"""The command line. Commands import what they need when they run, so ``autosbp --help`` is fast.

Exit codes: 0 success, 1 a gate failed, 2 wrong usage or bad input, 3 infeasible, 4 a trial or calibration failed, 5 the
service cannot be reached, 130 interrupted, 141 standard output was closed by its reader.
"""

from __future__ import annotations

import logging
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from autosbp import __version__
from autosbp.cli._admin import app as admin
from autosbp.cli._audit import audit
from autosbp.cli._calibrate import calibrate
from autosbp.cli._capture import capture
from autosbp.cli._clusters import clusters
from autosbp.cli._demo import demo
from autosbp.cli._diff import diff
from autosbp.cli._estimate import estimate
from autosbp.cli._exit_codes import with_exit_codes
from autosbp.cli._explain import explain
from autosbp.cli._export import export
from autosbp.cli._help_panels import with_panels
from autosbp.cli._keys import app as keys
from autosbp.cli._learn import learn
from autosbp.cli._plan import plan
from autosbp.cli._serve import serve, work
from autosbp.cli._train import train
from autosbp.cli._trial import trial
from autosbp.cli._tune import tune

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
    train,
    trial,
    tune,
    export,
    serve,
    work,
    audit,
    demo,
):
    app.command(_command.__name__)(with_exit_codes(with_panels(_command)))
app.add_typer(keys)
app.add_typer(admin)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autosbp {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    verbose: Annotated[
        int,
        typer.Option("--verbose", "-v", count=True, show_default=False, help="Log to standard error; -vv: details."),
    ] = 0,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Global options of the program."""
    if verbose:
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")  # to standard error
        logging.getLogger("autosbp").setLevel(logging.INFO if verbose == 1 else logging.DEBUG)


def _terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Raise ``SystemExit`` on SIGTERM and SIGHUP, so that context managers stop the ranks and jobs started here."""
    sys.exit(128 + number)


def main() -> None:
    """Entry point of the ``autosbp`` program."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup, for example
            signal.signal(number, _terminate)
    app(prog_name="autosbp")  # same name with ``python -m autosbp``
