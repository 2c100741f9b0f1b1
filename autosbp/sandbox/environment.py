"""Environment of processes that run untrusted code: an allow-list of variables, none of them secret."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_NAMES = frozenset(
    [
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *(
            "PYTHONPATH",
            "VIRTUAL_ENV",
            "LD_LIBRARY_PATH",
            "NUMBA_CACHE_DIR",
            "XDG_CACHE_HOME",
            "HF_HOME",
            "HF_HUB_OFFLINE",
        ),
        *(
            "CUDA_HOME",
            "CUDA_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
            "CUDA_DEVICE_MAX_CONNECTIONS",
            "CUDA_MODULE_LOADING",
        ),
        *("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
        *("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("TRACEPARENT", "TRACESTATE"),
        *("AUTOSBP_JOBS_OF", "AUTOSBP_OUTLIVES", "AUTOSBP_OWNER", "AUTOSBP_NODE", "AUTOSBP_NUM_NODES"),
    ]
)
_PREFIXES = (
    *("LC_", "PYTHONDONT", "PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONUNBUFFERED"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "MALLOC_"),
    *("GLOO_", "NCCL_", "TORCH_", "TORCHELASTIC_", "TORCHINDUCTOR_", "PYTORCH_", "UCX_", "FI_"),
)
"""Prefixes of settings of libraries that ranks load."""


def filter_environment(given: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """The allowed variables of an environment, and those named in ``more``."""
    wanted = _NAMES.union(more)
    return {name: value for name, value in given.items() if name in wanted or name.startswith(_PREFIXES)}
