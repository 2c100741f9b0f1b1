"""A pipeline runtime on ``torch.distributed.pipelining``: its schedules and P2P, our programs as its stages.

Shapes are given, none is inferred over the network. A stage's module gets the number of a microbatch and finds its batch
itself, so that labels and masks need no message. Buffers live from the moment when a receive is posted until the backward
of their microbatch.
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

from autosbp.costmodel.pipeline_passes import BACKWARD, FORWARD, WEIGHTS, stage_passes
from autosbp.executor.pipeline._base import example
from autosbp.executor.pipeline._chunk import ChunkProgram, Crossing
from autosbp.executor.runtime import Issued, Runtime
from autosbp.pipeline import Pipeline
from autosbp.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, Schedule

LIBRARY: Mapping[Schedule, Any] = {
    GPIPE: ScheduleGPipe,
    ONE_F_ONE_B: Schedule1F1B,
    INTERLEAVED: ScheduleInterleaved1F1B,
}
"""The library's schedules whose order of passes is ours."""
KINDS = {
    FORWARD: _ComputationType.FORWARD,
    BACKWARD: _ComputationType.BACKWARD_INPUT,
    WEIGHTS: _ComputationType.BACKWARD_WEIGHT,
}
"""The library's names for passes of zero-bubble schedules."""
GONE = torch.empty(0)
"""The buffer of a message that nothing needs any more."""


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
            self._schedule = self._make()(num_micro, loss_fn=_own_loss, scale_grads=False)
        numbers = torch.arange(num_micro)
        self._schedule.step(target=numbers, micro=numbers, return_outputs=False)

    def _make(self) -> Callable[..., Any]:
        schedule = self._pipeline.schedule
        if schedule.splits_backward:
            return partial(_ZeroBubble, self._stages, pipeline=self._pipeline)
        return partial(LIBRARY[schedule], [*self._stages] if schedule.interleaves else self._stages[0])


class _ZeroBubble(ScheduleInterleavedZeroBubble):
    """The library's, with passes in the order of ``costmodel.pipeline_passes``, in which weights wait no longer than the
    plan says."""

    def __init__(self, stages: list[_Stage], num_micro: int, *, pipeline: Pipeline, **options: Any) -> None:
        self._pipeline = pipeline
        super().__init__([*stages], num_micro, **options)

    def _calculate_single_rank_operations(self, rank: int) -> list[_Action | None]:
        passes = stage_passes(self._pipeline, rank, self._n_microbatches)
        return [_Action(one.chunk, KINDS[one.kind], one.micro) for one in passes]


def _own_loss(output: tuple[torch.Tensor, ...], _: torch.Tensor) -> torch.Tensor:
    """The last chunk's program computes the loss."""
    return output[0]


class _Module(torch.nn.Module):
    """A chunk as the library calls it: without parameters of its own, which it would otherwise treat."""

    def __init__(self, program: ChunkProgram) -> None:
        super().__init__()
        self._forward: Callable[..., tuple[torch.Tensor, ...]] = program.forward

    def forward(self, *received: torch.Tensor, micro: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._forward(int(micro), received)


class _Begun(dist.P2POp):
    """A receive that is under way when the schedule comes to begin it, behind its sends: Gloo would tell the sender of it
    behind their data (``_dist.send_and_receive``), and an exchange take the time of both messages."""

    def __new__(cls, asked: dist.P2POp) -> Self:
        made: Self = super().__new__(cls, asked.op, asked.tensor)
        return made

    def __init__(self, asked: dist.P2POp) -> None:
        super().__init__(asked.op, asked.tensor, asked.peer, asked.group, asked.tag)
        work = dist.irecv(asked.tensor, asked.peer, asked.group, asked.tag)

        def irecv(*_: Any, **__: Any) -> Any:
            return work

        self.op = irecv


class _Stage(PipelineStage):
    """The library's stage, with a record of its messages and with our calls around backward."""

    def __init__(self, program: ChunkProgram, pipeline: Pipeline, runtime: Runtime, group: Any) -> None:
        sends = program.sends or (Crossing("loss", (), program.loss_dtype, True),)
        super().__init__(
            _Module(program),
            program.index,
            pipeline.num_chunks,
            runtime.device,
            input_args=tuple(example(each.shape, each.dtype, each.gradient) for each in program.receives),
            output_args=tuple(example(each.shape, each.dtype, each.gradient) for each in sends),
            group=group,
            dw_builder=self._later if program.defers else None,
        )
        self.program, self.runtime = program, runtime
        self._arriving: dict[tuple[str, int], list[Issued]] = {}
        self._micro = 0

    def _later(self) -> Callable[[], None]:
        """What the backward pass that has just run left to do."""
        return partial(self.program.weights, self._micro)

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with self._without_buffers():
            return super()._prepare_forward_infra(*args, **kwargs)

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with self._without_buffers():
            return super()._prepare_backward_infra(*args, **kwargs)

    @contextmanager
    def _without_buffers(self) -> Iterator[None]:
        """The library makes those of all microbatches ahead: now without data, and without the gradients that torch 2.11
        asks of all, integers too."""
        device, training = self.device, self.has_backward
        self.device, self.has_backward = torch.device("meta"), False
        yield
        self.device, self.has_backward = device, training

    def _create_grad_send_info(self, args_recv_info: tuple[Any, ...]) -> list[int | None]:
        """Torch 2.11 would send a gradient of every value."""
        sources = super()._create_grad_send_info(args_recv_info)
        pairs = zip(sources, self.program.receives, strict=True)
        return [source if value.gradient else None for source, value in pairs]

    def _validate_fwd_outputs(self, outputs: tuple[torch.Tensor, ...]) -> None:
        """Torch 2.11 would refuse other strides than a new tensor's, also of axes of size one."""

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        infos = self.args_recv_info[fwd_chunk_id]
        for info, value in zip(infos, self.program.receives, strict=True):
            info.buffer = self._buffer(value).requires_grad_(value.gradient)
        return self._posted("forward", fwd_chunk_id, infos)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        gradients = self._gradients(bwd_chunk_id)
        for info, value in gradients:
            info.buffer = self._buffer(value)
        return self._posted("backward", bwd_chunk_id, tuple(info for info, _ in gradients))

    def _gradients(self, micro: int) -> list[tuple[Any, Crossing]]:
        """Those that come; torch 2.11 would wait for one of every value."""
        pairs = zip(self.grad_recv_info[micro], self.program.sends, strict=True)
        return [(info, value) for info, value in pairs if value.gradient]

    def _buffer(self, value: Crossing) -> torch.Tensor:
        return torch.empty(value.shape, dtype=value.dtype, device=self.device)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._sent(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._sent(super().get_bwd_send_ops(bwd_chunk_id))

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.runtime.issued += self._arriving.pop(("forward", fwd_chunk_id), [])
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        self.runtime.issued += self._arriving.pop(("backward", bwd_chunk_id), [])
        self._micro = bwd_chunk_id
        self.program.before_backward(bwd_chunk_id)
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self.program.after_backward()
        for info in (*self.args_recv_info[bwd_chunk_id], *(info for info, _ in self._gradients(bwd_chunk_id))):
            info.buffer = GONE

    def _posted(self, phase: str, micro: int, infos: tuple[Any, ...]) -> list[dist.P2POp]:
        """A receive counts where a pass waits for it."""
        here, operations = dist.get_rank(), self._get_recv_ops(infos)
        self._arriving[phase, micro] = [
            Issued("p2p", each.tensor.numel() * each.tensor.element_size(), (each.peer, here)) for each in operations
        ]
        return [_Begun(each) for each in operations] if self.device.type == "cpu" else operations

    def _sent(self, operations: list[dist.P2POp]) -> list[dist.P2POp]:
        here = dist.get_rank()
        for each in operations:
            # Torch 2.11 would keep what autograd recorded of it until the end of the step.
            each.tensor = each.tensor.detach()
            size = each.tensor.numel() * each.tensor.element_size()
            self.runtime.issued.append(Issued("p2p", size, (here, each.peer)))
        return operations
