"""Comparison of a trial with the model's own module, where MODEL is a ``package.module:factory``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autosbp.cli._exit_codes import note

if TYPE_CHECKING:
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan.plan import Plan


def compare_with_module(
    result: dict[str, Any], plan: Plan, graph: LogicalGraph, model: str, seed: int
) -> dict[str, Any]:
    """The result with ``module_losses``; ``loss_difference`` is then the largest from the module's and one device's."""
    from autosbp.graph_sources import load_module

    call = load_module(model, graph)
    if call is None:
        return result
    from autosbp.executor.module_reference import module_losses

    strategy, wanted = plan.strategy, result["reference_losses"]
    found = module_losses(
        call, graph, global_batch=strategy.global_batch, optimizer=strategy.optimizer, seed=seed, steps=len(wanted)
    )
    if isinstance(found, str):
        note(f"losses are not compared with {model} itself: {found}")
        return result
    from autosbp.executor.trial_metrics import relative_differences

    difference = max(relative_differences(result["losses"], found))
    note(f"losses differ from those of {model} itself by {difference:.2g} relative")
    return {**result, "module_losses": found, "loss_difference": max(result["loss_difference"] or 0.0, difference)}
