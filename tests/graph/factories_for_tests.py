"""Factories that ``package.module:factory`` names in tests: good ones, and one per mistake."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from autosbp.zoo.models import MLP


def inputs(batch: int = 4) -> dict[str, torch.Tensor]:
    return {"x": torch.zeros(batch, 8), "labels": torch.zeros(batch, dtype=torch.long)}


def pair() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    return MLP([8, 6, 4]).eval(), inputs()


@dataclass
class Described:
    """The object form."""

    module: torch.nn.Module = field(default_factory=lambda: MLP([8, 6, 4]))
    example_inputs: dict[str, Any] = field(default_factory=inputs)
    input_high: dict[str, int] = field(default_factory=lambda: {"labels": 3})


def no_module() -> Any:
    return "MLP", inputs()


def no_mapping() -> Any:
    return MLP([8, 4]), [torch.zeros(4, 8)]


def no_tensor() -> Any:
    return MLP([8, 4]), {"x": [1.0]}


def scalar() -> Any:
    return MLP([8, 4]), {"x": torch.zeros(())}


def batches_differ() -> Any:
    return MLP([8, 4]), {**inputs(), "x": torch.zeros(3, 8)}


def batch_of_one() -> Any:
    return MLP([8, 4]), inputs(1)


def alone() -> Any:
    return MLP([8, 4])


def fails() -> Any:
    raise RuntimeError("no data here")


def needs_arguments(width: int) -> Any:
    return MLP([width, 4]), inputs()


NOT_CALLABLE = 3
