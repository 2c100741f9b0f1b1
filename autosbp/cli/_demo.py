"""``autosbp demo``: the whole way on this machine, from a model to measured trials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the files that it makes.")]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer steps.")]


def demo(output: Out = Path("autosbp-demo"), quick: Quick = False) -> int:
    """Calibrate, plan and run a small model on this machine, by a service of its own."""
    from autosbp.demo import run_demo

    return run_demo(output, quick=quick)
