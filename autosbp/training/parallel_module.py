"""Parallel module: a user's module that trains under a plan, with the interface of ``torch.nn.Module``.

Parameters are DTensors over this rank's shards, so that torch's optimizers, learning rate schedulers, gradient clipping
and ``torch.distributed.checkpoint`` work on them. A call runs forward and backward of all microbatches, because their
communication overlaps; ``backward`` of the returned loss adds the gradients to ``parameter.grad``.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from autosbp.errors import InputError
from autosbp.executor.determinism import require_determinism
from autosbp.executor.pipeline import make_trainer
from autosbp.executor.rank_monitor import RankMonitor
from autosbp.executor.training import has_master_weights
from autosbp.graph.ir import LogicalGraph, Parameter
from autosbp.graph.precision import TF32, captured_hash, planned_graph, require_executor
from autosbp.graph.to_fx import torch_dtype
from autosbp.plan.plan import Plan, Strategy
from autosbp.training.batch_rows import GlobalBatchSampler
from autosbp.training.global_batch import GlobalBatch
from autosbp.training.gradient_norm import global_gradient_norm
from autosbp.training.module_state import ModuleState
from autosbp.training.sharded_parameters import ShardedParameters, register_statistics
from autosbp.training.weights import DrawnParameters, Weights, WholeParameters, module_tensors, weight_tensors
from autosbp.utils.json_io import read_file

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""How long a rank may keep the others waiting, for its data or a checkpoint, in a process group that ``parallelize`` starts."""


def parallelize(
    module: torch.nn.Module,
    plan: Plan | Mapping[str, Any] | str | Path,
    *,
    example: Mapping[str, torch.Tensor] | None = None,
    graph: LogicalGraph | None = None,
    weights: Weights | None = None,
    seed: int = 0,
    compiler: str | None = None,
) -> ParallelModule:
    """Wrap a module so that it trains under a plan on the ranks of ``torchrun``. Call it on every rank.

    Args:
        module: a module whose first output is the loss. It may be on the meta device, and is not changed.
        plan: a plan of this module, or a plan file.
        example: keyword tensors of a batch, with which the module is captured; dim 0 is the batch, at least 2.
        graph: the captured graph of the module, instead of ``example``.
        weights: initial weights instead of the module's own: a state dict or a ``.safetensors`` file.
        seed: seed of dropout, and of parameters on the meta device.
        compiler: ``torch.compile`` backend for the local ops, such as ``inductor``.

    Raises:
        InputError: the plan is of another model or number of ranks, or a weight is missing.
    """
    plan = _read_plan(plan)
    captured = _graph_of(module, plan, example) if graph is None else graph
    graph = _plan_graph(plan, captured)
    given = None if weights is None else weight_tensors(weights)
    state = ModuleState.of(captured, module, given)
    device = _start_ranks(plan)
    whole = WholeParameters(graph, module_tensors(module, seed) if given is None else given)
    return _monitored(ParallelModule(graph, plan.strategy, whole, state, device=device, seed=seed, compiler=compiler))


def parallelize_graph(
    graph: LogicalGraph, plan: Plan, *, weights: Weights | None = None, seed: int = 0
) -> ParallelModule:
    """Like ``parallelize``, for a captured graph without its module.

    Args:
        graph: the captured graph.
        plan: a plan of this graph, or a plan file.
        weights: initial weights; if None, they are random, with a distribution chosen by each parameter's role.
    """
    given = None if weights is None else weight_tensors(weights)
    graph, state = _plan_graph(plan, graph), ModuleState.of(graph, None, given)
    device = _start_ranks(plan)
    whole = DrawnParameters(graph, seed) if given is None else WholeParameters(graph, given)
    return _monitored(ParallelModule(graph, plan.strategy, whole, state, device=device, seed=seed))


def _monitored(module: ParallelModule) -> ParallelModule:
    module.monitor.start()
    return module


def _read_plan(plan: Plan | Mapping[str, Any] | str | Path) -> Plan:
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, Mapping):
        return Plan.from_dict(plan)
    return Plan.from_dict(read_file(Path(plan)))


def _graph_of(module: torch.nn.Module, plan: Plan, example: Mapping[str, torch.Tensor] | None) -> LogicalGraph:
    if example is None:
        raise InputError("example", None, "a batch to capture the module with, or graph=, is needed")
    from autosbp.api import capture_module

    return capture_module(module, example, name=str(plan.document.get("model", "model")))


def _plan_graph(plan: Plan, graph: LogicalGraph) -> LogicalGraph:
    """The captured graph in the plan's precision; refuses a graph that is not the plan's, and a precision of exports only."""
    require_executor(plan.precision)
    planned = plan.document["provenance"].get("graph_hash")
    if captured_hash(graph) != planned:
        limit = f"the plan is of graph {planned}: plan this module with inputs of the same shapes"
        raise InputError("plan", captured_hash(graph), limit)
    return planned_graph(graph, plan.document, "plan")


def _start_ranks(plan: Plan) -> torch.device:
    """This rank's device, with the process group of torchrun's environment."""
    is_cuda = plan.cluster.device.kind == "cuda"
    if plan.document.get("options", {}).get("deterministic", False):
        require_determinism()
    if plan.precision == TF32:
        torch.set_float32_matmul_precision("high")
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            limit = f"start the script with torchrun --nproc-per-node, {plan.strategy.num_devices} ranks in all"
            raise InputError("RANK", None, limit)
        _join_process_group("nccl" if is_cuda else "gloo")
    if dist.get_world_size() != plan.strategy.num_devices:
        limit = f"the plan is for {plan.strategy.num_devices} devices, one rank each"
        raise InputError("WORLD_SIZE", dist.get_world_size(), limit)
    if not is_cuda:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _join_process_group(backend: str) -> None:
    """Start the process group, with keys of this start: torchrun keeps its store when it restarts ranks, and Gloo would find
    the addresses of ranks that are gone."""
    store, rank, world_size = next(rendezvous("env://", timeout=COLLECTIVE_TIMEOUT))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefixed = dist.PrefixStore(f"autosbp/{attempt}", store)  # type: ignore[attr-defined]  # exists, but is not exported by name
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=world_size, timeout=COLLECTIVE_TIMEOUT)


class ParallelModule(torch.nn.Module):
    """One rank of a module that trains under a strategy; see ``parallelize``.

    A batch is either the whole global batch on every rank, or on every rank only its own rows (``batch_rows``), which
    ``batch_sampler`` loads. All ranks have to call the module. In training mode with gradients enabled, a call also runs
    the backward pass; otherwise it only computes the loss, without dropout in evaluation mode.

    Args:
        graph: the graph with a symbolic batch.
        parameters: whole initial parameters by name, of any dtype.
        state: state of the module, for running statistics and ``export_safetensors``.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        strategy: Strategy,
        parameters: Mapping[str, torch.Tensor],
        state: ModuleState,
        *,
        device: torch.device,
        seed: int = 0,
        compiler: str | None = None,
    ) -> None:
        super().__init__()
        if compiler is not None and strategy.pipeline is not None:
            raise InputError("compiler", compiler, "plans with pipeline stages run without torch.compile")
        self.trainer = make_trainer(
            graph,
            strategy,
            parameters,
            device=device,
            seed=seed,
            with_optimizer=False,
            buffers=state.statistics,
            compiler=compiler,
        )
        self.strategy, self.device, self.state = strategy, device, state
        self._shards = ShardedParameters(self.trainer, parameters, self)
        register_statistics(self.trainer, self)
        self._global_batch = GlobalBatch(self.trainer)
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        self._undelivered: weakref.ref[_Gradients] | None = None
        self.monitor = RankMonitor(self.trainer.runtime)
        """Ends the job if a rank is suspended, dead or unreachable; ``parallelize`` starts it."""

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        """Loss of the global batch, equal on all ranks."""
        whole = self._global_batch.of(batch)
        self._shards.copy_to_trainer()
        if not (self.training and torch.is_grad_enabled()):
            loss = self.trainer.evaluate(whole, training=self.training)
            self.trainer.issued()
            return loss
        pending = None if self._undelivered is None else self._undelivered()
        if pending is not None:
            pending.own()
        self._shards.own_gradients()
        self.trainer.runtime.loss_scale = scale = self.grad_scaler.get_scale()
        loss = self.trainer.forward_backward(whole)
        self.trainer.runtime.loss_scale = 1.0
        self.trainer.runtime.step += 1
        self.trainer.issued()
        gradients = _Gradients(self._shards, scale)
        self._undelivered = weakref.ref(gradients)
        result: torch.Tensor = _Loss.apply(self._anchor, loss, gradients)  # type: ignore[no-untyped-call]
        return result

    @property
    def grad_scaler(self) -> torch.amp.GradScaler:
        """Gradient scaler for plans in float16, used like any ``torch.amp.GradScaler``; with other plans it does nothing.

        All ranks skip a step if a gradient on any rank is not finite."""
        return self.trainer.scaler

    @property
    def graph(self) -> LogicalGraph:
        """The module's graph in the plan's precision, bound at the microbatch size."""
        return self.trainer.graph

    @property
    def batch_rows(self) -> list[int]:
        """Indices of this rank's samples in each global batch."""
        return self._global_batch.rows

    def batch_sampler(self, dataset: Any, *, shuffle: bool = True, seed: int = 0) -> GlobalBatchSampler:
        """Batch sampler for ``DataLoader(dataset, batch_sampler=...)`` that loads this rank's rows of each global batch."""
        return GlobalBatchSampler(len(dataset), self.strategy.global_batch, self.batch_rows, shuffle=shuffle, seed=seed)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale the gradients so that their global norm is at most ``max_norm``; returns the norm before scaling.

        All ranks have to call it. Unlike ``torch.nn.utils.clip_grad_norm_``, it covers all pipeline stages."""
        if norm_type != inf and not norm_type > 0:
            raise InputError("norm_type", norm_type, "a number above 0 is needed")
        total = global_gradient_norm(self._shards.counted_gradients(), norm_type, self.device)
        scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        self._shards.scale_gradients(scale)
        return total

    def local(self, name: str) -> torch.Tensor | None:
        """A copy of this rank's part of a parameter or buffer on the host; None if only other stages have it."""
        found = {**dict(self.named_parameters()), **dict(self.named_buffers())}.get(name)
        if found is None:
            return None
        part: torch.Tensor = found.to_local() if isinstance(found, DTensor) else found
        return part.detach().to("cpu", copy=True)

    def dtype_of(self, leaf: Parameter) -> torch.dtype:
        """Dtype in which a parameter is stored; float32 for half-precision parameters with master weights."""
        dtype = torch_dtype(leaf.meta.dtype)
        return torch.float32 if has_master_weights(self.trainer.graph) and dtype.itemsize == 2 else dtype

    @property
    def rng_step(self) -> int:
        """Number of training calls. It seeds dropout, so a run that resumes from a checkpoint has to set it."""
        return self.trainer.runtime.step

    @rng_step.setter
    def rng_step(self, step: int) -> None:
        self.trainer.runtime.step = step


class _Gradients:
    """Gradients of one call, kept until ``backward`` of its loss. The next call reuses their buffers.

    They are scaled by ``loss_scale``.
    """

    def __init__(self, shards: ShardedParameters, loss_scale: float) -> None:
        self._shards, self._loss_scale = shards, loss_scale
        self.values = shards.trainer_gradients()

    def own(self) -> None:
        """Copy the gradients out of the trainer's buffers."""
        self.values = [None if each is None else each.clone() for each in self.values]

    def deliver(self, scale: torch.Tensor) -> None:
        self._shards.add_gradients(self.values, float(scale) / self._loss_scale)


class _Loss(torch.autograd.Function):
    """Autograd function that returns the loss; its backward adds the gradients to the parameters.

    The first argument requires a gradient, so that autograd calls backward."""

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, loss: torch.Tensor, gradients: _Gradients) -> torch.Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *scales: torch.Tensor) -> Any:
        ctx.gradients.deliver(scales[0])
        return None, None, None
