"""Bitwise reproducible runs: torch's settings, and digests to compare runs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

import torch


def require_determinism() -> None:
    """Use only kernels that add in a fixed order; torch raises ``RuntimeError`` for an op without one.

    Call it before the first use of a GPU, when cuBLAS reads its workspace setting.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # No code here reads uninitialised memory, so filling it would only take time.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 (torch declares no type)


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of the names, dtypes, shapes and bits of tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
