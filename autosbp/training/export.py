"""Export of trained weights to one ``.safetensors`` file, under the names of the user's own module.

Fused tensors are put together again, tied parameters are stored once, under their first name. Rank 0 writes one tensor
after another, and gets the parts of each only when its turn has come: no rank ever holds more than one whole tensor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.errors import InputError
from autosbp.executor.pipeline import PipelineTrainer
from autosbp.graph.ir import Parameter
from autosbp.graph.to_fx import source_shape, store_parameter
from autosbp.program.stage_mesh import stage_mesh
from autosbp.sbp.layout import local_shape, shard_index
from autosbp.training.parallel_module import ParallelModule

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""Names in the format (huggingface.co/docs/safetensors)."""
_ALIGNMENT = 8


def export_safetensors(model: ParallelModule, path: str | Path) -> None:
    """Write the model's parameters and stored buffers, as its module's ``state_dict`` has them; call it on every rank.

    ``from_pretrained`` of transformers and ``safetensors`` read the file. Dtypes are those of the module: float32 for one
    that trained in mixed precision.

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


class _Export:
    """The tensors of a file, in its order. Create it, and run through ``values``, on every rank."""

    def __init__(self, model: ParallelModule) -> None:
        self._model, self._trainer = model, model.trainer
        self.group: Any = dist.new_group(backend="gloo")
        self._sources: dict[str, list[Parameter]] = {}
        for leaf in self._trainer.graph.parameters:
            self._sources.setdefault(leaf.source, []).append(leaf)
        self._metas = {name: (model.state.dtypes[name], source_shape(each)) for name, each in self._sources.items()}

    def header(self) -> bytes:
        """The file's beginning: length, and JSON with dtype, shape and place of each tensor."""
        entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        others = {name: (each.dtype, tuple(each.shape)) for name, each in self._model.state.others.items()}
        end = 0
        for name, (dtype, shape) in {**self._metas, **others}.items():
            begin, end = end, end + prod(shape) * dtype.itemsize
            entries[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    def values(self) -> Iterator[torch.Tensor]:
        """Whole tensors on rank 0; the other ranks send their parts, and get empty ones."""
        here = dist.get_rank() == 0
        for name, leaves in self._sources.items():
            dtype, shape = self._metas[name]
            whole = torch.empty(shape if here else 0, dtype=dtype)
            for leaf in leaves:
                value = self._gathered(leaf)
                if value is not None:
                    store_parameter(leaf, whole, value.to(dtype))
            yield whole
        for tensor in self._model.state.others.values():
            yield tensor.detach().cpu()

    def _gathered(self, leaf: Parameter) -> torch.Tensor | None:
        """On rank 0 the whole parameter, of whose equal parts one rank sends its own."""
        strategy, rank = self._model.strategy, dist.get_rank()
        layout, stage = strategy.parameters[leaf.name], self._stage(leaf.name)
        mesh = stage_mesh(strategy.mesh, stage)
        own = self._model.local_parameter(leaf.name)
        whole: torch.Tensor | None = None
        for place in range(mesh.size):
            coordinate, sender = mesh.coordinate(place), mesh.device(place)
            if any(at and not sbp.is_split for sbp, at in zip(layout, coordinate, strict=True)):
                continue
            if rank == 0:
                part = own
                if sender != 0 or part is None:
                    dtype = self._model.dtype_of(leaf)
                    part = torch.empty(local_shape(leaf.meta.sizes, layout, mesh), dtype=dtype)
                    dist.recv(part, sender, group=self.group)
                whole = torch.empty(leaf.meta.sizes, dtype=part.dtype) if whole is None else whole
                view = whole
                for dim, size in enumerate(part.shape):
                    view = view.narrow(dim, size * shard_index(dim, layout, mesh, coordinate), size)
                view.copy_(part)
            elif rank == sender:
                assert own is not None
                dist.send(own.contiguous(), 0, group=self.group)
        return whole

    def _stage(self, name: str) -> int:
        """The first stage that holds a parameter."""
        if not isinstance(self._trainer, PipelineTrainer):
            return 0
        stages = range(self._model.strategy.num_stages)
        return next(stage for stage in stages if name in self._trainer.stages.parameters_of(stage))
