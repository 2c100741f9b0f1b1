"""Short description of a strategy, such as ``ZeRO-2 x 32, no pipeline, bf16-mixed``."""

from __future__ import annotations

from collections.abc import Iterator

from autosbp.plan.plan import Strategy
from autosbp.program.parallelism import REPEATED, SEQUENCE, Parallelism

_MAX_NAMED = 2
"""Maximum number of deviating ops and parameters in the description; others are only counted."""


def strategy_name(strategy: Strategy, parallelism: Parallelism, precision: str | None) -> str:
    """Description of a strategy: degrees, sharding, stages, checkpointing, offloading, precision, and deviations."""
    said = [
        *_degrees(strategy, parallelism),
        _stages(strategy),
        *([f"{len(strategy.recompute)} checkpointed segments"] if strategy.recompute else []),
        *(["optimizer state on the host"] if strategy.offload else []),
        *([precision] if precision else []),
    ]
    deviating = _deviating(parallelism)
    return ", ".join(said) + (f"; {deviating}" if deviating else "")


def storage_name(strategy: Strategy, parallelism: Parallelism) -> str:
    """Kind of data parallelism: ``data parallel``, ``ZeRO-1``, ``ZeRO-2``, ``ZeRO-3`` or ``HSDP``.

    If parameters are gathered once a step, gradients are also reduced once a step. With several microbatches, each rank
    therefore accumulates unsharded gradients, which is ZeRO-1; with one microbatch it does not, which is ZeRO-2.
    """
    if parallelism.sharded == 1:
        return "data parallel"
    stage = "ZeRO-3" if strategy.gather == "use" else "ZeRO-1" if strategy.num_micro > 1 else "ZeRO-2"
    return stage if parallelism.replicated == 1 else f"HSDP ({stage})"


def _degrees(strategy: Strategy, parallelism: Parallelism) -> Iterator[str]:
    if parallelism.data > 1:
        shown = f"{parallelism.replicated} x {parallelism.sharded}" if parallelism.replicated > 1 else ""
        degree = shown if parallelism.sharded > 1 and shown else str(parallelism.data)
        yield f"{storage_name(strategy, parallelism)} x {degree}"
    if parallelism.tensor > 1:
        yield f"tensor parallel x {parallelism.tensor}{' with sequence' if parallelism.is_sequence_parallel else ''}"
    if parallelism.degree(SEQUENCE) > 1:
        yield f"sequence parallel x {parallelism.degree(SEQUENCE)}"
    if parallelism.degree(REPEATED) > 1:
        yield f"repeated x {parallelism.degree(REPEATED)}"
    if strategy.mesh.size == 1:
        yield "one device" if strategy.pipeline is None else "one device a stage"


def _stages(strategy: Strategy) -> str:
    if strategy.pipeline is None:
        return "no pipeline"
    virtual = f" of {strategy.pipeline.num_virtual} chunks" if strategy.pipeline.num_virtual > 1 else ""
    return (
        f"{strategy.num_stages} stages{virtual} ({strategy.pipeline.schedule.name}, {strategy.num_micro} microbatches)"
    )


def _deviating(parallelism: Parallelism) -> str:
    names = list(dict.fromkeys(each.name for each in parallelism.deviations))
    if not names:
        return ""
    more = len(names) - _MAX_NAMED
    return f"otherwise split: {', '.join(names[:_MAX_NAMED])}{f' and {more} more' if more > 0 else ''}"
