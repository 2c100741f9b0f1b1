"""Models as both of torch's exporters write them to ONNX files."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn


class Perceptron(nn.Module):
    """Two layers; the scores of four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Residual(nn.Module):
    """A ResNet's stem, one of its blocks with a shortcut, and its head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.first, self.first_norm = nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.second, self.second_norm = nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.short, self.head = nn.Conv2d(8, 16, 1, 2), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        y = self.second_norm(self.second(F.relu(self.first_norm(self.first(x)))))
        x = F.relu(y + self.short(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Transformer(nn.Module):
    """A decoder with one block, and its loss where labels are given."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, 16), nn.Embedding(6, 16)
        self.norm, self.heads, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.second_norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.scores, self.drop = nn.Linear(16, 32, bias=False), nn.Dropout(0.1)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        batch, length = ids.shape
        x = self.tokens(ids) + self.places(torch.arange(length))
        q, k, v = self.heads(self.norm(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, 16)
        x = x + self.drop(self.out(y))
        x = self.scores(x + self.down(F.gelu(self.up(self.second_norm(x)), approximate="tanh")))
        return x if labels is None else F.cross_entropy(x.flatten(0, 1), labels.flatten())


def ids() -> torch.Tensor:
    return torch.randint(32, (4, 6))


def images() -> torch.Tensor:
    return torch.randn(4, 3, 32, 32)


def trained(module: nn.Module) -> nn.Module:
    """The module with other numbers in every parameter: exporters make one tensor of equal ones."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * 0.2
        parameter.data = noise + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
    return module


def exported(module: nn.Module, inputs: Mapping[str, torch.Tensor], *, new: bool, free: bool = True) -> bytes:
    """The file that torch writes, by its ``new`` exporter or the one by traces; with a ``free`` batch, or a fixed one."""
    args, names = tuple(inputs.values()), list(inputs)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if new:
                shapes = tuple({0: torch.export.Dim("batch")} for _ in args) if free else None
                program = torch.onnx.export(module, args, input_names=names, dynamic_shapes=shapes, verbose=False)
                assert program is not None
                return program.model_proto.SerializeToString()
            file = io.BytesIO()
            modes = torch.onnx.TrainingMode
            torch.onnx.export(
                module, args, file, dynamo=False, input_names=names,
                dynamic_axes={name: {0: "batch"} for name in names} if free else None,
                training=modes.TRAINING if module.training else modes.EVAL,
            )  # fmt: skip
            return file.getvalue()
    finally:
        logging.disable(logging.NOTSET)
