"""The library's front door: load or capture a graph, plan, run a trial. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosbp.cluster import Cluster, load_cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.costmodel.network import NetworkModel
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.plan import Costs, Plan, Strategy
from autosbp.sbp.rules import check_graph
from autosbp.search.op_keys import op_keys
from autosbp.search.pareto import pareto_front
from autosbp.search.plan_options import PlanOptions, require_room
from autosbp.search.planner import make_plan
from autosbp.search.what_if import what_if
from autosbp.search.why import why
from autosbp.torchrun import MAX_LOCAL_RANKS, Launch, run_ranks

if TYPE_CHECKING:
    from autosbp.lessons import Taught

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
    "learn_from_trials",
    "load_cluster",
    "load_graph",
    "make_plan",
    "op_keys",
    "pareto_front",
    "predict_costs",
    "read_onnx",
    "require_room",
    "run_trial",
    "what_if",
    "why",
]


def load_graph(document: object) -> LogicalGraph:
    """Read a graph document and check every op and shape; raises ``GraphError`` naming field, value and limit."""
    graph = from_dict(document)
    check_graph(graph)
    return graph


def capture(model: str, **options: Any) -> LogicalGraph:
    """The graph of a MODEL: a ``.json`` graph, ``zoo:NAME``, ``hf:config.json``, ``onnx:FILE`` or
    ``package.module:factory``. ``seq_len=`` and ``image_size=`` apply to Hugging Face configs."""
    from autosbp.sources import load_model

    return load_model(model, **options)


def capture_hf_config(
    config: Mapping[str, Any], seq_len: int | None = None, image_size: int | None = None
) -> LogicalGraph:
    """Capture the model of a Hugging Face config (needs the extra ``hf``)."""
    from autosbp.discovery import discover_rules
    from autosbp.graph.huggingface import capture_hf_config as run

    return discover_rules(run(config, seq_len, image_size=image_size))


def read_onnx(data: bytes, shown: str = "...") -> dict[str, Any]:
    """An ONNX file without its weights, as a document (needs the extra ``onnx``); it is parsed in a process with limits.
    Errors call it ``shown``."""
    from autosbp.graph.onnx import read_onnx as run

    return dict(run(data, shown).document)


def capture_onnx(document: Mapping[str, Any], name: str | None = None) -> LogicalGraph:
    """Capture the ONNX model of a document of ``read_onnx``; by default under the name that the file has."""
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
) -> LogicalGraph:
    """The graph of a torch module whose first output is the training loss.

    Args:
        module: a ``torch.nn.Module``; no weight is stored.
        example_inputs: keyword tensors whose dim 0 is the batch, of equal size, at least 2.
        name: the graph's name.
        input_high: exclusive upper bounds of integer inputs.

    Raises:
        UnsupportedError: for what cannot be captured.
        InputError: for a rule declared by ``register_op`` that its op breaks.
    """
    from autosbp.discovery import discover_rules
    from autosbp.graph.capture import capture as run

    graph = discover_rules(run(module, example_inputs, name=name, input_high=input_high))
    check_graph(graph)
    return graph


def predict_costs(
    graph: LogicalGraph, strategy: Strategy, cluster: Cluster, calibration: Calibration | None = None
) -> Costs:
    """Time, traffic and memory of one training step of any strategy on the cluster that its mesh is of; ``InputError``
    where it does not fit the graph."""
    compute = ComputeModel(cluster.device, calibration)
    boxing = BoxingModel(NetworkModel(cluster, calibration), strategy.mesh, compute.copy_bytes_per_s)
    return evaluate(graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch)), strategy, boxing, compute)


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
    """Train under the plan's strategy, on this machine by default, and report what was measured: ``TrialError``."""
    from autosbp.executor.trial import run_trial as run

    return run(
        plan, graph, steps=steps, warmup=warmup, seed=seed, timeout_s=timeout_s, workdir=workdir, log=log,
        cancelled=cancelled, launch=launch, libraries=libraries, max_ranks=max_ranks, resume=resume,
    )  # fmt: skip


def learn_from_trials(calibration: Calibration, folders: Sequence[Path]) -> Taught:
    """The calibration corrected by trials, each a ``workdir`` of ``run_trial``, and their steps as they are predicted
    before and after; ``autosbp.costmodel.learning.unlearn`` undoes it. Raises ``InputError`` for a trial that cannot
    teach it: of another cluster, not successful, or of other collectives than its plan's."""
    from autosbp.lessons import learn_from_trials as run

    return run(calibration, folders)
