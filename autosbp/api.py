"""Public Python API: load or capture a graph, plan, run a trial. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.strategy_cost import predict_costs
from autosbp.graph.ir import LogicalGraph
from autosbp.graph_sources import load_graph, load_model
from autosbp.launch.local import MAX_LOCAL_RANKS, Launch, run_ranks
from autosbp.plan.plan import Plan, Strategy
from autosbp.sbp.rules import check_graph
from autosbp.search.ops_to_time import op_keys
from autosbp.search.pareto import pareto_front
from autosbp.search.plan_options import PlanOptions, check_memory
from autosbp.search.planner import make_plan
from autosbp.search.trainer_plans import plan_for
from autosbp.search.what_if import what_if
from autosbp.search.why import why

if TYPE_CHECKING:
    from autosbp.costmodel.trial_feedback import CorrectedCalibration
    from autosbp.tuning.options import TuneOptions
    from autosbp.tuning.tuner import TuningResult, TuningState

__all__ = [
    "Calibration",
    "Cluster",
    "LogicalGraph",
    "Plan",
    "PlanOptions",
    "Strategy",
    "capture",
    "capture_hf_config",
    "capture_module",
    "capture_onnx",
    "compare_strategies",
    "learn_from_trials",
    "load_cluster",
    "load_graph",
    "make_plan",
    "op_keys",
    "pareto_front",
    "plan_for",
    "predict_costs",
    "read_onnx",
    "check_memory",
    "run_trial",
    "tune",
    "what_if",
    "why",
]


def capture(model: str, **options: Any) -> LogicalGraph:
    """Load or capture the graph that a MODEL string names.

    Args:
        model: a ``.json`` graph, ``zoo:NAME``, ``hf:config.json``, ``onnx:FILE`` or ``package.module:factory``.
        **options: ``seq_len=`` and ``image_size=``, for Hugging Face configs only; ``check=False`` leaves out the
            comparison with the module.
    """
    return load_model(model, **options)


def capture_hf_config(
    config: Mapping[str, Any], seq_len: int | None = None, image_size: int | None = None, check: bool = True
) -> LogicalGraph:
    """Capture the model of a Hugging Face config (needs the extra ``hf``)."""
    from autosbp.discovery import discover_rules
    from autosbp.graph.huggingface import capture_hf_config as run

    return discover_rules(run(config, seq_len, image_size=image_size, check=check))


def read_onnx(data: bytes, shown: str = "...") -> dict[str, Any]:
    """Read an ONNX file without its weights into a document, in a process with limits (needs the extra ``onnx``).

    Args:
        data: content of the file.
        shown: name of the file in error messages.
    """
    from autosbp.graph.onnx import read_onnx as run

    return dict(run(data, shown).document)


def capture_onnx(document: Mapping[str, Any], name: str | None = None) -> LogicalGraph:
    """Capture the ONNX model of a document of ``read_onnx``; ``name`` defaults to the file's own graph name."""
    from autosbp.discovery import discover_rules
    from autosbp.graph.onnx import Skeleton
    from autosbp.graph.onnx import capture_onnx as run

    graph = discover_rules(run(Skeleton.from_dict(document), name))
    check_graph(graph)
    return graph


def capture_module(
    module: Any,
    example_inputs: Mapping[str, Any],
    *,
    name: str,
    input_high: Mapping[str, int] | None = None,
    check: bool = True,
) -> LogicalGraph:
    """Capture the graph of a torch module whose first output is the training loss.

    Args:
        module: a ``torch.nn.Module``; no weight is stored.
        example_inputs: keyword tensors whose dim 0 is the batch, of equal size, at least 2.
        name: the graph's name.
        input_high: exclusive upper bounds of integer inputs.
        check: compare loss and gradients of the graph with those of the module, where it is small enough.

    Raises:
        UnsupportedError: if the module cannot be captured, or the graph is not the module.
        InputError: if an op breaks a rule that ``register_op`` declared for it.
    """
    from autosbp.discovery import discover_rules
    from autosbp.graph.capture import capture as run

    graph = discover_rules(run(module, example_inputs, name=name, input_high=input_high, check=check))
    check_graph(graph)
    return graph


def run_trial(
    plan: Plan,
    graph: LogicalGraph,
    *,
    steps: int = 20,
    warmup: int = 3,
    seed: int = 0,
    timeout_s: float = 600.0,
    workdir: Path,
    log: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    launch: Launch = run_ranks,
    libraries: Sequence[str] = (),
    max_ranks: int = MAX_LOCAL_RANKS,
    resume: bool = False,
) -> dict[str, Any]:
    """Train under the plan's strategy, on this machine by default, and return the measurements.

    Raises:
        TrialError: if the run fails.
    """
    from autosbp.executor.trial import run_trial as run

    return run(
        plan, graph, steps=steps, warmup=warmup, seed=seed, timeout_s=timeout_s, workdir=workdir, log=log,
        cancelled=cancelled, launch=launch, libraries=libraries, max_ranks=max_ranks, resume=resume,
    )  # fmt: skip


def tune(
    graph: LogicalGraph,
    cluster: Cluster,
    folder: Path,
    calibration: Calibration | None = None,
    options: PlanOptions | None = None,
    asked: TuneOptions | None = None,
    *,
    launch: Launch = run_ranks,
    libraries: Sequence[str] = (),
    progress: Callable[[TuningState], bool] = lambda _: True,
    cancelled: Callable[[], bool] = lambda: False,
) -> TuningResult:
    """The fastest strategy by trials on real ranks; see ``autosbp.tuning.tuner.tune``."""
    from autosbp.tuning.tuner import tune as run

    return run(
        graph, cluster, folder, calibration, options, asked, launch=launch, libraries=libraries, progress=progress,
        cancelled=cancelled,
    )  # fmt: skip


def compare_strategies(
    plan: Plan, graph: LogicalGraph, names: Sequence[str] | None = None, **options: Any
) -> list[Any]:
    """Measure a plan and its baselines in one interleaved run; see ``autosbp.tuning.comparison.compare_strategies``."""
    from autosbp.tuning.comparison import compare_strategies as run

    return run(plan, graph, names, **options)


def learn_from_trials(calibration: Calibration, folders: Sequence[Path]) -> CorrectedCalibration:
    """Correct a calibration by trials, and predict their steps before and after the correction.

    ``autosbp.costmodel.calibration_correction.drop_last_correction`` undoes the correction.

    Args:
        calibration: the calibration to correct.
        folders: the ``workdir`` of each ``run_trial``.

    Raises:
        InputError: if a trial ran on another cluster, failed, or ran other collectives than its plan's.
    """
    from autosbp.costmodel.trial_feedback import learn_from_trials as run

    return run(calibration, folders)
