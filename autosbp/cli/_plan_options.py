"""Options of ``autosbp plan``, some of which ``autosbp tune`` shares."""

from __future__ import annotations

from typing import Annotated

import typer

from autosbp.errors import InputError

Searcher = Annotated[
    str, typer.Option("--searcher", help="Search algorithm: auto, exact, exhaustive, random, and others.")
]
Seed = Annotated[
    int, typer.Option("--seed", help="Random seed; the same input, seed and calibration give the same plan.")
]
TimeLimit = Annotated[
    float,
    typer.Option("--time-limit", metavar="S", help="Soft time limit in seconds; returns the best plan found."),
]
MemoryLimit = Annotated[
    int | None,
    typer.Option(
        "--memory-limit-bytes", help="Memory limit per device in bytes; default: device memory less a reserve."
    ),
]

GapTolerance = Annotated[
    float,
    typer.Option(
        "--gap-tolerance",
        help="Acceptable relative optimality gap. Above the default, search stops as soon as a plan is this "
        "close to the minimum-work bound.",
    ),
]
Pin = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        metavar="NAME=LAYOUT",
        help="Fix a layout instead of searching it: head.weight=S0, 'tables.*=S0 -> B', linear_1=P. Repeatable.",
    ),
]
Baselines = Annotated[
    str | None,
    typer.Option(
        "--baselines",
        metavar="NAME,...",
        help="Baselines to compare with: data_parallel, zero1, zero2, zero3, fsdp2, megatron, megatron_sp, "
        "megatron_lm, one_weird_trick, summa_2d, alpa_like, autoddl_tied, or none.",
    ),
]
Stages = Annotated[
    int | None, typer.Option("--stages", help="Number of pipeline stages; 1 forbids pipelines. Default: searched.")
]
Schedule = Annotated[
    list[str] | None,
    typer.Option(
        "--schedule",
        help="Allowed pipeline schedule: gpipe, 1f1b, interleaved_1f1b or zero_bubble; default: all of these. "
        "message_driven can be planned but not run in trials. Repeatable.",
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        help="Parameter sharding: as_used (none beyond the layouts), step (ZeRO-2: gathered once per step) or use "
        "(ZeRO-3: gathered for each use). Default: searched.",
    ),
]
Recompute = Annotated[
    int | None,
    typer.Option(
        "--recompute",
        metavar="K",
        help="Activation checkpointing: save activations only every K blocks and recompute the rest; 0 disables "
        "it. Default: as memory requires.",
    ),
]
Offload = Annotated[
    bool,
    typer.Option("--offload", help="Allow optimizer state in host memory, if the cluster file describes its hosts."),
]
BucketBytes = Annotated[
    int | None,
    typer.Option(
        "--bucket-bytes",
        metavar="BYTES",
        help="Maximum gradient bucket size (default 25 MiB; smaller if memory is short).",
    ),
]

Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic", help="Use only bitwise reproducible ops and layouts; trials of the plan enforce this."
    ),
]

DataParallel = Annotated[
    int | None,
    typer.Option(
        "--data-parallel",
        metavar="N",
        help="Data-parallel degree within a pipeline stage; 1 disables data parallelism.",
    ),
]
TensorParallel = Annotated[
    int | None,
    typer.Option(
        "--tensor-parallel",
        metavar="N",
        help="Tensor-parallel degree within a pipeline stage; 1 disables tensor parallelism.",
    ),
]
Stage = Annotated[
    list[str] | None,
    typer.Option(
        "--stage",
        metavar="NAME=K",
        help="Assign an op, the ops that read a parameter, or a name pattern to pipeline stage K (from 0). Repeatable.",
    ),
]
Start = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="PLAN",
        help="Warm start from an earlier plan, also for another batch or other links; its cost is recomputed. "
        "With --server, a plan that the service stores, or its id.",
    ),
]
Pareto = Annotated[
    int | None,
    typer.Option(
        "--pareto", metavar="N", help="Find up to N plans (2 to 64) on the Pareto front of step time and memory."
    ),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="TOOL",
        help="Search only strategies that a trainer can run: torchtitan, megatron, deepspeed or accelerate. Not with "
        "--pareto, --start or --server.",
    ),
]
Builder = Annotated[
    str | None,
    typer.Option(
        "--builder",
        metavar="NAME",
        help="Builder of the synchronization strategy for gradients: all_reduce, ps, ps_balanced, ps_partitioned, "
        "ps_hierarchical, all_reduce_partitioned, all_reduce_random_axis, all_reduce_hierarchical, "
        "sparse_all_gather, parallax, ddp, horovod; or auto, which simulates them and takes the fastest.",
    ),
]
Chunk = Annotated[
    int | None,
    typer.Option("--chunk", metavar="N", help="With --builder: number of adjacent variables in one message."),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Also measure the plan and its baselines in interleaved trials on this machine, and compare their times.",
    ),
]


def baseline_names(text: str) -> tuple[str, ...]:
    """The names of ``--baselines``."""
    names = tuple(name.strip() for name in text.split(","))
    if "none" in names and len(names) > 1:
        raise InputError("baselines", text, "none cannot be combined with other baselines")
    return () if names == ("none",) else names
