"""Groups of options in ``--help``, one table for all commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from typer.models import OptionInfo

_PANELS: Mapping[str, tuple[str, ...]] = {
    "Model and cluster": (
        *("model", "graph", "cluster", "calibration", "seq_len", "image_size", "global_batch", "micro_batch"),
        *("optimizer", "precision"),
    ),
    "Constraints": (
        *("memory_limit_bytes", "pin", "stages", "stage", "schedule", "storage", "recompute", "offload"),
        *("bucket_bytes", "deterministic", "data_parallel", "tensor_parallel"),
    ),
    "Search": (
        *(
            "searcher",
            "seed",
            "time_limit",
            "gap_tolerance",
            "baselines",
            "start",
            "pareto",
            "trainer",
            "builder",
            "chunk",
        ),
        *("trials", "minutes", "proposer"),
    ),
    "Ranks": ("verify", "baseline", "steps", "warmup", "launcher", "interface", "workdir", "imports", "timeout"),
    "Trials": ("trial_seconds", "trial_timeout"),
    "Gates": (
        *("max_step_time", "max_regression", "max_prediction_error", "max_loss_difference", "baseline_report"),
        *("label", "baseline_label"),
    ),
    "Measurement": ("backend", "sizes", "repeats", "budget", "variants", "method", "point_s", "op_s"),
    "nccl-tests": ("nccl_log", "nccl_tests", "in_place"),
    "Data": ("data", "tokenizer", "eval_data", "eval_every", "workers"),
    "Training": (
        *("learning_rate", "clip", "weight_decay", "weights", "export"),
        *("checkpoint_every", "keep", "folder", "resume", "log_every", "tensorboard", "profile"),
    ),
    "Questions": ("program", "rank", "why", "most", "what_if", "factor"),
    "Filters": ("tenant", "strangers", "status", "last"),
    "Address": ("host", "port", "root_path"),
    "Data and work": ("database", "data_dir", "worker"),
    "Service": ("server", "wait"),
    "Output": ("output", "report", "junit", "github", "as_json"),
}
_PANEL_OF = {name: panel for panel, names in _PANELS.items() for name in names}
_OF_COMMAND: Mapping[str, Mapping[str, str]] = {
    "trial": {"seed": "Ranks"},
    "train": dict.fromkeys(("steps", "warmup", "schedule", "seed"), "Training"),
    "tune": {"seed": "Search"},
}
"""Panels of options that mean something else in a command."""


def with_panels(command: Callable[..., Any]) -> Callable[..., Any]:
    """Set the panels of a command's options, which are told by the names of its parameters."""
    panels = {**_PANEL_OF, **_OF_COMMAND.get(command.__name__, {})}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for each in getattr(hint, "__metadata__", ()):
            if isinstance(each, OptionInfo) and name in panels:
                each.rich_help_panel = panels[name]
    return command
