"""Initial weights of a parallel module, read one tensor at a time to limit memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from autosbp.errors import InputError
from autosbp.executor.parameter_shards import random_parameter
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.to_fx import initial_parameter

Weights = Mapping[str, torch.Tensor] | str | Path
"""A state dict with the module's names, or a ``.safetensors`` file."""


class WholeParameters(Mapping[str, torch.Tensor]):
    """Whole initial parameters of a graph by name, created lazily.

    Args:
        graph: the graph, whose parameters refer to tensors of the module.
        tensors: tensors of the module by name.
    """

    def __init__(self, graph: LogicalGraph, tensors: Mapping[str, torch.Tensor]) -> None:
        self._leaves = {leaf.name: leaf for leaf in graph.parameters}
        self._tensors = tensors

    def __getitem__(self, name: str) -> torch.Tensor:
        leaf = self._leaves[name]
        if leaf.source not in self._tensors:
            raise InputError("weights", leaf.source, "the weights must hold every parameter of the model")
        value = initial_parameter(leaf, self._tensors).detach()
        if tuple(value.shape) != leaf.meta.sizes:
            raise InputError(f"weights.{leaf.source}", tuple(value.shape), f"the model's shape is {leaf.meta.sizes}")
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)


class DrawnParameters(Mapping[str, torch.Tensor]):
    """Whole random parameters of a graph by name, created lazily and equal on all ranks."""

    def __init__(self, graph: LogicalGraph, seed: int) -> None:
        self._graph, self._seed = graph, seed
        self._leaves = {leaf.name: leaf for leaf in graph.parameters}

    def __getitem__(self, name: str) -> torch.Tensor:
        return random_parameter(self._graph, self._leaves[name], self._seed)

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)


def module_tensors(module: torch.nn.Module, seed: int) -> Mapping[str, torch.Tensor]:
    """Parameters of a module by name; those on the meta device are initialised with ``seed``, equally on all ranks."""
    return _OwnTensors(module, seed)


def weight_tensors(weights: Weights) -> Mapping[str, torch.Tensor]:
    """Tensors by their names in the module."""
    return weights if isinstance(weights, Mapping) else _SafetensorsFile(Path(weights))


class _OwnTensors(Mapping[str, torch.Tensor]):
    """Parameters of a module; those on the meta device are initialised by their submodule.

    Each submodule has its own seed, so that values do not depend on the order of reading.
    """

    def __init__(self, module: torch.nn.Module, seed: int) -> None:
        self._module, self._seed = module, seed
        self._tensors = dict(module.named_parameters(remove_duplicate=False))

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        return self._initialised(name) if tensor.is_meta else tensor

    def _initialised(self, name: str) -> torch.Tensor:
        path, _, own = name.rpartition(".")
        owner = self._module.get_submodule(path)
        kind = type(owner).__name__
        if not callable(getattr(owner, "reset_parameters", None)):
            limit = f"{kind} has no reset_parameters(); pass weights=, or create the module on a device"
            raise InputError(f"module.{name}", "meta", limit)
        made: Any = _on_cpu(owner)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(crc32(f"{self._seed}/{path}".encode()))
            made.reset_parameters()
        value: torch.Tensor = made.get_parameter(own).detach()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _on_cpu(owner: torch.nn.Module) -> torch.nn.Module:
    """A copy of a module with uninitialised CPU tensors as its own parameters; the original stays on the meta device."""
    made: torch.nn.Module = owner.__class__.__new__(owner.__class__)
    made.__dict__.update(owner.__dict__)
    made._parameters = {
        name: None if each is None else torch.nn.Parameter(torch.empty_like(each, device="cpu"), each.requires_grad)
        for name, each in owner._parameters.items()
    }
    return made


class _SafetensorsFile(Mapping[str, torch.Tensor]):
    """Tensors of a ``.safetensors`` file, read lazily (needs the package ``safetensors``)."""

    def __init__(self, path: Path) -> None:
        try:
            from safetensors import safe_open
        except ImportError as missing:
            raise InputError("weights", str(path), "reading .safetensors needs the package safetensors") from missing
        if not path.is_file():
            raise InputError("weights", str(path), "no such file")
        self._file: Any = safe_open(str(path), framework="pt")
        self._names: list[str] = list(self._file.keys())  # type: ignore[no-untyped-call]

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
