"""Buffers of parameter gathers and gradient buckets on meta tensors.

They have the sizes of those in ``executor.flat_buffers`` and ``executor.gradient_buckets``; when each is made and freed
is decided by the schedules that the executor runs, too (``program.gather_schedule``, ``program.bucket_schedule``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from autosbp.costmodel.memory import resharding
from autosbp.costmodel.memory.autograd import GradientLeaf, MetaAutograd
from autosbp.costmodel.memory.meta_tensors import GATHERED, GRADIENTS, MetaTensor, contiguous
from autosbp.costmodel.memory.views import plain_reshape
from autosbp.program.bucket_schedule import BucketSchedule
from autosbp.program.gather_schedule import GatherSchedule
from autosbp.program.gradient_buckets import Bucket
from autosbp.program.parameter_flow import ParameterFlow
from autosbp.program.parameter_gathers import Gather
from autosbp.sbp.mesh import Mesh


class GradientBuffers:
    """The gradient of each parameter, in the form that the optimizer reads.

    ``widths`` are bytes per element of the gradients, by the parameters' names.
    """

    def __init__(self, m: MetaAutograd, widths: Mapping[str, int]) -> None:
        self.m, self.widths = m, widths
        self.of: dict[str, MetaTensor] = {}

    def add(self, name: str, gradient: MetaTensor) -> None:
        """Store a gradient, copied if something else holds it or it is not contiguous; later ones are added in place."""
        gradient = self.m.in_width(gradient, self.widths[name])
        if name in self.of:
            return
        if gradient.storage.pending or not gradient.is_contiguous:
            gradient = self.m.empty_like(gradient)
        self.set(name, gradient)

    def set(self, name: str, gradient: MetaTensor) -> None:
        gradient.storage.set_purpose(GRADIENTS)
        self.of[name] = gradient


class GatherBuffer:
    """Buffers of one gather: from stored shards to full copies, and from their gradients back."""

    def __init__(
        self, m: MetaAutograd, gather: Gather, parts: Sequence[MetaTensor], gradient_width: int, mesh: Mesh
    ) -> None:
        self.m, self.gather, self.parts, self.gradient_width, self.mesh = m, gather, parts, gradient_width, mesh
        self.ranks = mesh.group_size(gather.step.axes) if gather.flat else 1
        self.alone = gather.flat and len(parts) == 1 and prod(parts[0].shape[: gather.step.src_dim]) == 1
        self.elements = sum(prod(part.shape) for part in parts)
        self._whole: MetaTensor | None = None
        self._gradient: MetaTensor | None = None
        self._total: MetaTensor | None = None
        self._back: tuple[MetaTensor, MetaTensor] | None = None

    @property
    def width(self) -> int:
        return self.parts[0].width

    def _flat(self, ranks: int, width: int) -> MetaTensor:
        return self.m.new((ranks * self.elements,), width, purpose=GATHERED)

    def start_gather(self) -> None:
        if self.gather.flat:
            self._whole = self._flat(self.ranks, self.width)
        else:
            self._whole = resharding.box_without_autograd(self.m, self.parts[0], self.gather.boxes[0].steps, self.mesh)
            self._whole.storage.set_purpose(
                GATHERED if self._whole.storage is not self.parts[0].storage else "parameters"
            )

    def wait_copies(self) -> list[MetaTensor]:
        whole, self._whole = self._whole, None
        assert whole is not None
        if not self.gather.flat:
            return [whole]
        if self.alone:
            shape = self._copy_shape(0)
            return [whole.view(shape, contiguous(shape))]
        shapes = [self._copy_shape(at) for at in range(len(self.parts))]
        return [self.m.new(shape, self.width, purpose=GATHERED) for shape in shapes]

    def _copy_shape(self, at: int) -> tuple[int, ...]:
        shape = list(self.parts[at].shape)
        shape[self.gather.boxes[at].steps[0].src_dim] *= self.ranks
        return tuple(shape)

    def add_gradient(self, at: int, gradient: MetaTensor) -> None:  # noqa: ARG002 - of any copy alike
        if self.alone or not self.gather.flat:
            gradient = self.m.in_width(gradient, self.gradient_width)
        if not self.gather.flat:
            self._gradient = gradient if self._gradient is None else self.m.empty_like(gradient)
        elif self.alone:
            flat = plain_reshape(self.m, gradient, (prod(gradient.shape),))
            self._gradient = flat if self._gradient is None else self.m.empty_like(flat)
        elif self._gradient is None:
            self._gradient = self._flat(self.ranks, self.gradient_width)
        if self._gradient is not None:
            self._gradient.storage.set_purpose(GATHERED)

    def start_reduce(self) -> None:
        self.wait_gradients()
        gradient, self._gradient = self._gradient, None
        if self.gather.flat:
            width = self.gradient_width
            self._back = self._flat(1, width), gradient if gradient is not None else self._flat(self.ranks, width)
            return
        steps = self.gather.boxes[0].steps
        value = (
            gradient
            if gradient is not None
            else resharding.box_without_autograd(self.m, self.parts[0], steps, self.mesh)
        )
        del gradient
        value = resharding.box_gradient(self.m, value, steps, self.mesh)
        self._total = self.m.new(value.shape, self.gradient_width, purpose=GRADIENTS)

    def wait_gradients(self) -> None:
        if self._back is not None:
            resharding.gloo_staging_copy(self.m, self._back[1])
            self._total = self._total or self._back[0]
            self._back = None

    def take(self) -> list[MetaTensor]:
        """Gradients of the shards."""
        self.wait_gradients()
        total, self._total = self._total, None
        if total is None:
            return []
        return [total.view(part.shape, contiguous(part.shape)) for part in self.parts]


class GatherBuffers:
    """All gathers of a step on meta tensors.

    Args:
        each_use, arrived, late: as of ``GatherSchedule``.
        parts: stored parts by name.
    """

    def __init__(
        self,
        m: MetaAutograd,
        flow: ParameterFlow,
        each_use: bool,
        parts: Mapping[str, MetaTensor],
        gradients: GradientBuffers,
        mesh: Mesh,
        arrived: Callable[[str], None],
        *,
        late: bool = False,
    ) -> None:
        self.m, self.flow, self.each_use = m, flow, each_use
        self.messages = [
            GatherBuffer(
                m,
                gather,
                [parts[box.ref.name] for box in gather.boxes],
                gradients.widths[gather.boxes[0].ref.name],
                mesh,
            )
            for gather in flow.gathers
        ]
        self.schedule = GatherSchedule(flow, each_use, self.messages, gradients.add, arrived, late=late)
        self._anchor = m.new((), 0)
        self._anchor.node = GradientLeaf(lambda _: None)
        self._needed_by: dict[int, list[int]] = {}
        for place, gather in enumerate(flow.gathers):
            if gather.again >= 0 and not gather.kept and not gather.recomputed:
                self._needed_by.setdefault(gather.again, []).append(place)

    def fetch(self, key: Any, recomputed_item: int | None) -> MetaTensor:
        """The copy for a boxing of the program."""
        place, at = self.flow.place[key]
        copies = self.schedule.copies(place, at, recomputed_item)
        copy = copies[at].view(copies[at].shape, copies[at].strides)
        copy.storage.lent = self.each_use and not self.flow.gathers[place].kept
        self.m.record([copy], [self._anchor], [], lambda grads, _: self._add_gradient(place, at, grads))
        if recomputed_item is None:
            self.schedule.end_forward_use(place, at)
        return copy

    def _add_gradient(self, place: int, at: int, grads: list[Any]) -> list[MetaTensor | None]:
        self.schedule.add_gradient(place, at, grads[0])
        return [None]

    def skip_gradients(self, place: int, boxes: int) -> None:
        """Expect ``boxes`` fewer gradients for a message in this pass, because their blocks are skipped."""
        self.schedule.gathers[place].missing -= boxes

    def before_backward(self, item: int) -> Callable[[], None] | None:
        """Hook that runs before the backward of an item; None if nothing is gathered there."""
        needed = self._needed_by.get(item, ())
        if not self.flow.backward_gathers.get(item) and not needed:
            return None

        def run() -> None:
            self.schedule.send_for_backward(item)
            for place in needed:
                self.schedule.gathers[place].wait_copies()

        return run


class BucketBuffers:
    """Flat gradient buffers of a step on meta tensors, as in ``executor.gradient_buckets.GradientBuckets``."""

    def __init__(
        self, m: MetaAutograd, flow: ParameterFlow, parts: Mapping[str, MetaTensor], gradients: GradientBuffers
    ) -> None:
        self.m, self.buckets, self.parts, self.gradients = m, flow.buckets, parts, gradients
        self.schedule = BucketSchedule(flow, self._issue)
        self._buffers = [self._buffer(bucket) for bucket in flow.buckets]

    def _buffer(self, bucket: Bucket) -> MetaTensor | None:
        if bucket.message is not None:
            elements = bucket.message.buffer_elements
        elif len(bucket.names) > 1:
            elements = sum(prod(self.parts[name].shape) for name in bucket.names)
        else:
            elements = 0
        if elements == 0:
            return None
        return self.m.new((elements,), self.gradients.widths[bucket.names[0]], purpose=GRADIENTS)

    def add_gradient(self, name: str, gradient: MetaTensor) -> None:
        """Handle the accumulated gradient of a parameter that the program reads directly."""
        self.gradients.add(name, gradient)
        del gradient
        if self.schedule.open:
            self.schedule.mark_ready(name)

    def _issue(self, at: int) -> None:
        buffer = self._buffers[at]
        if buffer is None or self.buckets[at].message is not None:
            return
        for name in self.buckets[at].names:
            shape = self.parts[name].shape
            self.gradients.of[name] = buffer.view(shape, contiguous(shape))
