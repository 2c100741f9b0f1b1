"""Arguments and options that several commands take, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A graph .json, zoo:NAME, hf:config.json, onnx:FILE or package.module:factory.",
        show_default=False,
    ),
]
PlanFile = Annotated[str, typer.Argument(metavar="PLAN", help="A plan .json.", show_default=False)]
PlanOrId = Annotated[
    str,
    typer.Argument(metavar="PLAN", help="A plan .json; with --server also the id of a strategy.", show_default=False),
]
GraphFile = Annotated[
    str | None, typer.Option("--graph", metavar="FILE", help="The plan's graph, as autosbp capture wrote it.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="The plan's model, to capture again.")
]
ImageSize = Annotated[int | None, typer.Option("--image-size", help="Pixels per side of an hf: model's images.")]
SeqLen = Annotated[int | None, typer.Option("--seq-len", help="Tokens per sequence of an hf: model.")]
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="CLUSTER",
        help="A .yaml or .json file, or PRESET:NODES such as dgx-a100-80g:8 or local:4.",
        show_default=False,
    ),
]
Calibration = Annotated[
    str | None, typer.Option("--calibration", metavar="FILE", help="What autosbp calibrate wrote; else the data sheet.")
]
GlobalBatch = Annotated[int | None, typer.Option("--global-batch", help="Samples per step; 8 per device by default.")]
MicroBatch = Annotated[int | None, typer.Option("--micro-batch", help="Samples per pass; by default chosen.")]
Optimizer = Annotated[str, typer.Option("--optimizer", help="adamw or sgd.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
Server = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="Let a service do the work, such as http://host:8000.")
]
Baseline = Annotated[str | None, typer.Option("--baseline", metavar="NAME", help="A baseline of the plan instead.")]
Timeout = Annotated[float, typer.Option("--timeout", metavar="S", help="Seconds after which the run fails.")]
