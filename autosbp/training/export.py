"""Export of trained weights to one ``.safetensors`` file, under the names of the user's own module.

Fused tensors are put together again, tied parameters are stored once, under their first name. Rank 0 writes one tensor
after another, and gets the parts of each only when its turn has come: no rank ever holds more than one whole tensor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.errors import InputError
from autosbp.executor.pipeline import PipelineTrainer
from autosbp.executor.running_statistics import batch_norm_layers, channel_layout
from autosbp.graph.ir import Parameter
from autosbp.graph.to_fx import source_shape, store_parameter
from autosbp.program.stage_mesh import stage_mesh
from autosbp.sbp.layout import B, NdSbp, local_shape, shard_index
from autosbp.training.parallel_module import ParallelModule

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""Names in the format (huggingface.co/docs/safetensors)."""
_ALIGNMENT = 8


def export_safetensors(model: ParallelModule, path: str | Path) -> None:
    """Write the parameters and persistent buffers of the module's ``state_dict`` to a file. Call it on every rank.

    ``from_pretrained`` of transformers and ``safetensors`` can read the file. Dtypes are those of the user's module, such
    as float32 if it was trained in mixed precision.

    Raises:
        InputError: the file cannot be written.
    """
    path = Path(path)
    tensors = _Export(model)
    if dist.get_rank() != 0:
        for _ in tensors.values():
            pass
        dist.barrier(tensors.group)
        return
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(tensors.header())
            for tensor in tensors.values():
                file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        part.replace(path)
    except OSError as error:
        raise InputError("export", str(path), f"cannot be written ({error})") from None
    finally:
        part.unlink(missing_ok=True)
    dist.barrier(tensors.group)


@dataclass(frozen=True, slots=True)
class _Shards:
    """A sharded tensor; ``own`` is this rank's part, or None on ranks of other stages."""

    own: torch.Tensor | None
    dtype: torch.dtype
    sizes: tuple[int, ...]
    layout: NdSbp
    stage: int


class _Export:
    """Tensors of a file, in order. All ranks have to create it and iterate over ``values``."""

    def __init__(self, model: ParallelModule) -> None:
        self._model, self._trainer, self._state = model, model.trainer, model.state
        self.group: Any = dist.new_group(backend="gloo")
        self._sources: dict[str, list[Parameter]] = {}
        for leaf in self._trainer.graph.parameters:
            self._sources.setdefault(leaf.source, []).append(leaf)
        self._metas = {name: (self._state.dtypes[name], source_shape(each)) for name, each in self._sources.items()}

    def header(self) -> bytes:
        """Header of the file: its length, and JSON with dtype, shape and offsets of each tensor."""
        entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        others = {**self._state.statistics, **self._state.others}
        metas = self._metas | {name: (each.dtype, tuple(each.shape)) for name, each in others.items()}
        end = 0
        for name, (dtype, shape) in metas.items():
            begin, end = end, end + prod(shape) * dtype.itemsize
            entries[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    def values(self) -> Iterator[torch.Tensor]:
        """Whole tensors on rank 0; the other ranks send their parts and yield empty tensors."""
        for name, leaves in self._sources.items():
            dtype, shape = self._metas[name]
            whole = torch.empty(shape if dist.get_rank() == 0 else 0, dtype=dtype)
            for leaf in leaves:
                value = self._gathered(self._parameter(leaf))
                if value is not None:
                    store_parameter(leaf, whole, value.to(dtype))
            yield whole
        for name, initial in self._state.statistics.items():
            value = self._gathered(self._buffer(name, initial))
            yield torch.empty(0) if value is None else value
        for tensor in self._state.others.values():
            yield tensor.detach().cpu()

    def _parameter(self, leaf: Parameter) -> _Shards:
        name, model = leaf.name, self._model
        stage = self._stage(lambda stage: name in self._stages.parameters_of(stage))
        return _Shards(model.local(name), model.dtype_of(leaf), leaf.meta.sizes, model.strategy.parameters[name], stage)

    def _buffer(self, name: str, initial: torch.Tensor) -> _Shards:
        layer, _, _ = name.rpartition(".")
        prefix = f"{layer}." if layer else ""
        nodes = [node for node, each in batch_norm_layers(self._trainer.graph).items() if each == prefix]
        stage = self._stage(
            lambda stage: any(node.name in nodes for chunk in self._stages.of(stage) for node in chunk.graph.nodes)
        )
        layout = channel_layout(self._model.strategy, nodes[0]) if initial.dim() else ()
        return _Shards(self._model.local(name), initial.dtype, tuple(initial.shape), layout, stage)

    @property
    def _stages(self) -> PipelineProgram:
        assert isinstance(self._trainer, PipelineTrainer)
        return self._trainer.stages

    def _stage(self, holds: Callable[[int], bool]) -> int:
        """The first stage that has a tensor."""
        stages = range(self._model.strategy.num_stages)
        return next(stage for stage in stages if holds(stage)) if len(stages) > 1 else 0

    def _gathered(self, shards: _Shards) -> torch.Tensor | None:
        """The whole tensor on rank 0; only one of several ranks with the same part sends it."""
        rank, mesh = dist.get_rank(), stage_mesh(self._model.strategy.mesh, shards.stage)
        whole = torch.empty(shards.sizes, dtype=shards.dtype) if rank == 0 else None
        layout = shards.layout or tuple(B for _ in mesh.axes)
        for place in range(mesh.size):
            coordinate, sender = mesh.coordinate(place), mesh.device(place)
            if any(at and not sbp.is_split for sbp, at in zip(layout, coordinate, strict=True)):
                continue
            if whole is not None:
                view = whole
                for dim, size in enumerate(local_shape(shards.sizes, layout, mesh)):
                    view = view.narrow(dim, size * shard_index(dim, layout, mesh, coordinate), size)
                view.copy_(self._part(shards, view, sender))
            elif rank == sender:
                assert shards.own is not None
                dist.send(shards.own.contiguous(), 0, group=self.group)
        return whole

    def _part(self, shards: _Shards, place: torch.Tensor, sender: int) -> torch.Tensor:
        """The part of a rank, on rank 0."""
        if sender == 0:
            assert shards.own is not None
            return shards.own
        received = torch.empty(place.shape, dtype=place.dtype)
        dist.recv(received, sender, group=self.group)
        return received
