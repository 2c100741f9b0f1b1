"""``autosbp train``: train a model under a plan, without a script."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._exit_codes import note, print_json
from autosbp.cli._files import NO_SIZES, ModelSizes, check_output, read_model, read_plan
from autosbp.cli._options import AsJson, Baseline, GraphFile, ImageSize, ModelOption, PlanFile, SeqLen
from autosbp.errors import InputError
from autosbp.graph_sources import trainable_module

if TYPE_CHECKING:
    from autosbp.plan.plan import Plan
    from autosbp.training.trainer import TrainerSettings

Data = Annotated[
    list[str],
    typer.Option(
        "--data",
        metavar="DATA",
        help="Training data: a text file, token ids (.bin, .npy), a folder with a sub-folder of images for each class, or "
        "package.module:dataset. Repeatable.",
        show_default=False,
    ),
]
EvalData = Annotated[
    list[str] | None,
    typer.Option("--eval-data", metavar="DATA", help="Evaluation data, in the forms of --data. Repeatable."),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer", metavar="FILE", help="Hugging Face tokenizer.json for text; default: bytes are tokens."
    ),
]
Weights = Annotated[Path | None, typer.Option("--weights", metavar="FILE", help="Initial weights (.safetensors file).")]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", metavar="DIR", help="Folder for checkpoints and metrics; default: runs/PLAN_ID."),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume/--no-resume", help="Resume from the newest checkpoint in the folder, or fail if there is one."
    ),
]
Steps = Annotated[int, typer.Option("--steps", help="Number of optimizer steps of the whole run.")]
Rate = Annotated[float, typer.Option("--learning-rate", help="Peak learning rate.")]
Schedule = Annotated[
    str, typer.Option("--schedule", help="Learning rate decay: cosine or linear (to a tenth of the peak), or constant.")
]
Warmup = Annotated[int, typer.Option("--warmup", help="Number of linear warm-up steps.")]
Decay = Annotated[float, typer.Option("--weight-decay", help="Weight decay of matrices.")]
Clip = Annotated[float, typer.Option("--clip", help="Maximum norm of the gradient; inf disables clipping.")]
CheckpointEvery = Annotated[int, typer.Option("--checkpoint-every", help="Steps between checkpoints.")]
Keep = Annotated[int, typer.Option("--keep", help="Number of newest checkpoints to keep.")]
EvalEvery = Annotated[int, typer.Option("--eval-every", help="Steps between evaluations.")]
LogEvery = Annotated[int, typer.Option("--log-every", help="Steps between reports.")]
Export = Annotated[
    Path | None,
    typer.Option("--export", metavar="FILE", help="Write the trained weights to one .safetensors file at the end."),
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write metrics for TensorBoard.")]
Profile = Annotated[
    int | None, typer.Option("--profile", metavar="STEP", help="Profile three steps from this one with torch.profiler.")
]
Workers = Annotated[int, typer.Option("--workers", help="Number of data loading processes per rank.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of initial weights, order of samples and dropout.")]


@dataclass(frozen=True, slots=True)
class _Run:
    """Arguments of ``autosbp train`` that a rank reads."""

    plan: Plan
    graph: str | None
    model: str | None
    sizes: ModelSizes
    data: tuple[str, ...]
    eval_data: tuple[str, ...]
    tokenizer: Path | None
    weights: Path | None
    folder: Path
    resume: bool
    export: Path | None


def train(
    plan: PlanFile,
    data: Data,
    model: ModelOption = None,
    graph: GraphFile = None,
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    baseline: Baseline = None,
    tokenizer: Tokenizer = None,
    weights: Weights = None,
    eval_data: EvalData = None,
    steps: Steps = 1000,
    learning_rate: Rate = 3e-4,
    schedule: Schedule = "cosine",
    warmup: Warmup = 0,
    weight_decay: Decay = 0.1,
    clip: Clip = 1.0,
    folder: Folder = None,
    resume: Resume = True,
    checkpoint_every: CheckpointEvery = 500,
    keep: Keep = 3,
    eval_every: EvalEvery = 500,
    export: Export = None,
    log_every: LogEvery = 10,
    tensorboard: TensorBoard = False,
    profile: Profile = None,
    workers: Workers = 0,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Train a model under a plan on text, images or your own dataset.

    Starts the plan's ranks on this machine; under torchrun, each process is a rank. An interrupted run resumes from its
    newest checkpoint. A plan only has the hash of its graph, so --model, or --graph and --weights, is required. See
    docs/how-to/train-without-a-script.md.
    """
    from autosbp.graph.precision import require_executor
    from autosbp.training.trainer import TrainerSettings

    settings = TrainerSettings(
        steps, learning_rate, schedule, warmup, weight_decay, clip, checkpoint_every, keep, eval_every, log_every,
        tensorboard, profile, seed, workers,
    )  # fmt: skip
    check_output(export)
    found = read_plan(plan, baseline)
    require_executor(found.precision)
    run = _Run(
        found, graph, model, ModelSizes(seq_len, image_size), tuple(data), tuple(eval_data or ()), tokenizer, weights,
        folder or Path("runs") / found.plan_id, resume, export,
    )  # fmt: skip
    if model is None:
        run.sizes.refuse("requires --model hf:CONFIG")
        if graph is None:
            raise InputError("model", None, "the plan's model is needed: --model MODEL, or --graph FILE")
    if "RANK" in os.environ:
        _train_rank(run, settings, as_json)
        return 0
    from autosbp.training.launch import check_devices_here, run_ranks_here

    check_devices_here(found)
    return run_ranks_here(sys.argv[1:], found.strategy.num_devices)


def _train_rank(run: _Run, settings: TrainerSettings, as_json: bool) -> None:
    import torch.distributed as dist

    from autosbp.training import export_safetensors
    from autosbp.training.data import load_dataset
    from autosbp.training.launch import prepare_rank
    from autosbp.training.trainer import Trainer
    from autosbp.utils.processes import exit_rank

    prepare_rank(run.plan)
    parallel, module, graph = _parallel_model(run, settings.seed)
    ways: dict[str, Any] = {"tokenizer": run.tokenizer, "cache": run.folder}
    trainer = Trainer(
        parallel,
        run.plan.document,
        load_dataset(run.data, graph, module, **ways),
        run.folder,
        settings,
        evaluation=load_dataset(run.eval_data, graph, module, **ways) if run.eval_data else None,
        resume=run.resume,
        say=note,
    )
    metrics = trainer.run()
    if run.export is not None:
        export_safetensors(parallel, run.export)
    if dist.get_rank() == 0 and as_json:
        print_json({"plan_id": run.plan.plan_id, "folder": str(run.folder), "step": trainer.step, **metrics})
    exit_rank()


def _parallel_model(run: _Run, seed: int) -> Any:
    """The parallel module, the original module (None with ``--graph``), and the captured graph."""
    import torch

    from autosbp.training import parallelize
    from autosbp.training.parallel_module import parallelize_graph

    source = run.graph or run.model
    assert source is not None
    graph = read_model(source, NO_SIZES if run.graph else run.sizes, check=False)
    torch.manual_seed(seed)
    module = None if run.model is None else trainable_module(run.model, run.sizes.image_size)
    if module is None:
        return parallelize_graph(graph, run.plan, weights=run.weights, seed=seed), None, graph
    return parallelize(module, run.plan, graph=graph, weights=run.weights, seed=seed), module, graph
