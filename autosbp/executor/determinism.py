"""The same bits in every run: what torch is told, and how runs are compared."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

import torch


def require_determinism() -> None:
    """Kernels that add up in a fixed order alone; torch raises ``RuntimeError`` where an op has none. Call it before the
    first use of a GPU: cuBLAS reads its workspace's setting then."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # Nothing here reads memory before it is written, so that filling it would only take time.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 (torch declares no type)


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """A hash of the names, types, shapes and bits of tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
