"""Arguments and options that several commands share."""

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
    str | None,
    typer.Option("--graph", metavar="FILE", help="Graph file of the plan's model, as written by autosbp capture."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="MODEL", help=("The plan's model, which is captured again; an alternative to --graph.")
    ),
]
ImageSize = Annotated[int | None, typer.Option("--image-size", help="Image side length in pixels, for an hf: model.")]
SeqLen = Annotated[
    int | None,
    typer.Option("--seq-len", help="Sequence length in tokens, for an hf: model; default: the config's maximum."),
]
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
    str | None,
    typer.Option(
        "--calibration", metavar="FILE", help="Calibration file from autosbp calibrate; default: data-sheet numbers."
    ),
]
GlobalBatch = Annotated[
    int | None, typer.Option("--global-batch", help="Global batch size in samples; default: 8 per device.")
]
MicroBatch = Annotated[
    int | None, typer.Option("--micro-batch", help="Microbatch size in samples; chosen by the search by default.")
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        help="Training precision: fp32, tf32, bf16, bf16-mixed, fp16-mixed or fp8-mixed; auto is bf16-mixed on devices "
        "with tensor cores for bfloat16, else fp32.",
    ),
]
Optimizer = Annotated[str, typer.Option("--optimizer", help="Optimizer: adamw or sgd.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Output file.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="Run the work in a service at this URL, such as http://host:8000."),
]
Baseline = Annotated[
    str | None,
    typer.Option("--baseline", metavar="NAME", help="Use this baseline of the plan instead of the plan itself."),
]
Timeout = Annotated[float, typer.Option("--timeout", metavar="S", help="Hard time limit of the run in seconds.")]
