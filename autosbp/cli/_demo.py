"""``autosbp demo``: the full workflow on this machine, from a model to measured trials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the demo's files.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Fewer steps and smaller batches; times are then not representative.")
]


def demo(output: Out = Path("autosbp-demo"), quick: Quick = False) -> int:
    """Calibrate, plan and run a small model on this machine, using a service that the command starts."""
    from autosbp.cli.demo_run import run_demo

    return run_demo(output, quick=quick)
