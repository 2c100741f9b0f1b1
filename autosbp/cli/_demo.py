"""``autosbp demo``: the whole way on this machine, from a model to a measured trial."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from autosbp.errors import UnsupportedError

Out = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the files that it makes.")]
Quick = Annotated[bool, typer.Option("--quick", help="Smaller and shorter.")]


def demo(output: Out = Path("autosbp-demo"), quick: Quick = False) -> int:
    """Capture, calibrate, plan, explain and run a small model on this machine."""
    if importlib.util.find_spec("autosbp.demo") is None:
        raise UnsupportedError("autosbp.demo is not part of this installation")
    return int(importlib.import_module("autosbp.demo").run_demo(output, quick=quick))
