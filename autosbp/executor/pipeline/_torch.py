"""Pipeline runtime on ``torch.distributed.pipelining``: its schedules and P2P, with our programs as stages.

Shapes are given; none is inferred over the network. A stage's module gets the number of a microbatch and finds its
batch itself, so that labels and masks need no message. Buffers live from the posting of a receive to the backward of
their microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.pipelining.schedules import _Action, _ComputationType

from autosbp.executor.communication_wait import metered
from autosbp.executor.pipeline._base import meta_tensor
from autosbp.executor.pipeline._chunk import ChunkProgram, StageTensor
from autosbp.executor.runtime import IssuedCollective, Runtime
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, Schedule
from autosbp.schedules.passes import BACKWARD, FORWARD, WGRAD, stage_passes

TORCH_SCHEDULES: Mapping[Schedule, Any] = {
    GPIPE: ScheduleGPipe,
    ONE_F_ONE_B: Schedule1F1B,
    INTERLEAVED: ScheduleInterleaved1F1B,
}
"""The library's schedules whose order of passes equals ours."""
TORCH_PASS_KINDS = {
    FORWARD: _ComputationType.FORWARD,
    BACKWARD: _ComputationType.BACKWARD_INPUT,
    WGRAD: _ComputationType.BACKWARD_WEIGHT,
}
"""The library's names for passes of zero-bubble schedules."""
EMPTY_BUFFER = torch.empty(0)
"""Placeholder for a message buffer that is no longer needed."""


class TorchPipelining:
    """See ``PipelineRuntime``."""

    def __init__(self) -> None:
        self._schedule: Any = None
        self._stages: list[_Stage] = []

    def build(self, programs: Sequence[ChunkProgram], pipeline: Pipeline, runtime: Runtime, group: Any) -> None:
        self._stages = [_Stage(program, pipeline, runtime, group) for program in programs]
        self._pipeline = pipeline

    def step(self, num_micro: int) -> None:
        if self._schedule is None:
            self._schedule = self._make()(num_micro, loss_fn=_loss_of_output, scale_grads=False)
        numbers = torch.arange(num_micro)
        self._schedule.step(target=numbers, micro=numbers, return_outputs=False)

    def _make(self) -> Callable[..., Any]:
        schedule = self._pipeline.schedule
        if schedule.splits_backward:
            return partial(_ZeroBubble, self._stages, pipeline=self._pipeline)
        return partial(TORCH_SCHEDULES[schedule], [*self._stages] if schedule.interleaves else self._stages[0])


class _ZeroBubble(ScheduleInterleavedZeroBubble):
    """The library's schedule with the order of ``schedules.passes``, which limits the lag of weight gradients."""

    def __init__(self, stages: list[_Stage], num_micro: int, *, pipeline: Pipeline, **options: Any) -> None:
        self._pipeline = pipeline
        super().__init__([*stages], num_micro, **options)

    def _calculate_single_rank_operations(self, rank: int) -> list[_Action | None]:
        passes = stage_passes(self._pipeline, rank, self._n_microbatches)
        return [_Action(one.chunk, TORCH_PASS_KINDS[one.kind], one.micro) for one in passes]


def _loss_of_output(output: tuple[torch.Tensor, ...], _: torch.Tensor) -> torch.Tensor:
    """The last chunk's program computes the loss."""
    return output[0]


class _Module(torch.nn.Module):
    """A chunk as the library calls it; without parameters, since the library would handle these itself."""

    def __init__(self, program: ChunkProgram) -> None:
        super().__init__()
        self._forward: Callable[..., tuple[torch.Tensor, ...]] = program.forward

    def forward(self, *received: torch.Tensor, micro: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._forward(int(micro), received)


class _PostedReceive(dist.P2POp):
    """A receive that is already posted when the schedule starts it after its sends.

    Gloo would notify the sender only after their data (``_torch_distributed.send_and_receive``), and an exchange would
    take the time of both messages.
    """

    def __new__(cls, asked: dist.P2POp) -> Self:
        made: Self = super().__new__(cls, asked.op, asked.tensor)
        return made

    def __init__(self, asked: dist.P2POp) -> None:
        super().__init__(asked.op, asked.tensor, asked.peer, asked.group, asked.tag)
        work = metered(dist.irecv(asked.tensor, asked.peer, asked.group, asked.tag))

        def irecv(*_: Any, **__: Any) -> Any:
            return work

        self.op = irecv


class _Stage(PipelineStage):
    """The library's stage; records its messages and calls our program around backward."""

    def __init__(self, program: ChunkProgram, pipeline: Pipeline, runtime: Runtime, group: Any) -> None:
        sends = program.sends or (StageTensor("loss", (), program.loss_dtype, True),)
        super().__init__(
            _Module(program),
            program.index,
            pipeline.num_chunks,
            runtime.device,
            input_args=tuple(meta_tensor(each.shape, each.dtype, each.gradient) for each in program.receives),
            output_args=tuple(meta_tensor(each.shape, each.dtype, each.gradient) for each in sends),
            group=group,
            dw_builder=self._wgrad_call if program.defers else None,
        )
        self.program, self.runtime = program, runtime
        self._pending_records: dict[tuple[str, int], list[IssuedCollective]] = {}
        self._micro = 0

    def _wgrad_call(self) -> Callable[[], None]:
        """The deferred weight gradients of the backward pass that has just run."""
        return partial(self.program.weights, self._micro)

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with self._without_buffers():
            return super()._prepare_forward_infra(*args, **kwargs)

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with self._without_buffers():
            return super()._prepare_backward_infra(*args, **kwargs)

    @contextmanager
    def _without_buffers(self) -> Iterator[None]:
        """Context in which the library's buffers have no data.

        It allocates those of all microbatches ahead, and torch 2.11 requires gradients of all of them, even integers.
        """
        device, training = self.device, self.has_backward
        self.device, self.has_backward = torch.device("meta"), False
        yield
        self.device, self.has_backward = device, training

    def _create_grad_send_info(self, args_recv_info: tuple[Any, ...]) -> list[int | None]:
        """Omit values without a gradient; torch 2.11 would send one for every value."""
        sources = super()._create_grad_send_info(args_recv_info)
        pairs = zip(sources, self.program.receives, strict=True)
        return [source if value.gradient else None for source, value in pairs]

    def _validate_fwd_outputs(self, outputs: tuple[torch.Tensor, ...]) -> None:
        """Skip the check: torch 2.11 rejects strides other than a new tensor's, even of dims of size 1."""

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        infos = self.args_recv_info[fwd_chunk_id]
        for info, value in zip(infos, self.program.receives, strict=True):
            info.buffer = self._buffer(value).requires_grad_(value.gradient)
        return self._post_receives("forward", fwd_chunk_id, infos)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        gradients = self._gradients(bwd_chunk_id)
        for info, value in gradients:
            info.buffer = self._buffer(value)
        return self._post_receives("backward", bwd_chunk_id, tuple(info for info, _ in gradients))

    def _gradients(self, micro: int) -> list[tuple[Any, StageTensor]]:
        """Receives of gradients that come; torch 2.11 would wait for one of every value."""
        pairs = zip(self.grad_recv_info[micro], self.program.sends, strict=True)
        return [(info, value) for info, value in pairs if value.gradient]

    def _buffer(self, value: StageTensor) -> torch.Tensor:
        return torch.empty(value.shape, dtype=value.dtype, device=self.device)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._record_sends(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._record_sends(super().get_bwd_send_ops(bwd_chunk_id))

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.runtime.issued += self._pending_records.pop(("forward", fwd_chunk_id), [])
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        self.runtime.issued += self._pending_records.pop(("backward", bwd_chunk_id), [])
        self._micro = bwd_chunk_id
        self.program.before_backward(bwd_chunk_id)
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self.program.after_backward()
        for info in (*self.args_recv_info[bwd_chunk_id], *(info for info, _ in self._gradients(bwd_chunk_id))):
            info.buffer = EMPTY_BUFFER

    def _post_receives(self, phase: str, micro: int, infos: tuple[Any, ...]) -> list[dist.P2POp]:
        """Post receives; each is recorded when a pass waits for it."""
        here, operations = dist.get_rank(), self._get_recv_ops(infos)
        self._pending_records[phase, micro] = [
            IssuedCollective("p2p", each.tensor.numel() * each.tensor.element_size(), (each.peer, here))
            for each in operations
        ]
        return [_PostedReceive(each) for each in operations] if self.device.type == "cpu" else operations

    def _record_sends(self, operations: list[dist.P2POp]) -> list[dist.P2POp]:
        here = dist.get_rank()
        for each in operations:
            # Torch 2.11 would keep the tensor's autograd graph until the end of the step.
            each.tensor = each.tensor.detach()
            size = each.tensor.numel() * each.tensor.element_size()
            self.runtime.issued.append(IssuedCollective("p2p", size, (here, each.peer)))
        return operations
