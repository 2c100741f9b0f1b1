"""Seconds in which the host asks a GPU for one op: blocks of a transformer that are so small that the GPU waits for it."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
from torch.nn import functional

from autosbp.costmodel.launches import Launches
from calibration._collectives import largest
from calibration._request import LAUNCHES

NUM_BLOCKS, NUM_REPEATS = 12, 9
OPS_OF_BLOCK = 20
"""As a graph counts them, views included."""
_BATCH, _LENGTH, _HEADS, _WIDTH = 2, 16, 4, 32


def measure_launches(device: torch.device, log: Any, made: set[str]) -> None:
    """Measure and log it on GPUs, unless that is in ``made``: of the slowest rank, all of them at once."""
    if device.type != "cuda" or LAUNCHES in made:
        return
    log.write({"begin": LAUNCHES})
    found = launches(device)
    log.write({"launches": {name: largest(seconds, device) for name, seconds in found.to_dict().items()}})


def launches(device: torch.device) -> Launches:
    """Of this process."""
    blocks = [_Block(device) for _ in range(NUM_BLOCKS)]
    given = torch.randn(_BATCH, _LENGTH, _WIDTH, device=device, requires_grad=True)
    ahead, back = [], []
    for _ in range(NUM_REPEATS):
        for block in blocks:
            block.zero_grad(set_to_none=True)
        _wait(device)
        started = time.perf_counter()
        x = given
        for block in blocks:
            x = block(x)
        ahead.append(time.perf_counter() - started)
        loss = x.sum()
        _wait(device)
        started = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        back.append(time.perf_counter() - started)
    num_ops = NUM_BLOCKS * OPS_OF_BLOCK
    return Launches(median(ahead) / num_ops, median(back) / num_ops)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _Block(torch.nn.Module):
    """Attention and two layers, with norms and sums around them, op by op."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(_WIDTH, device=device) for _ in range(2))
        self.heads = torch.nn.ModuleList(torch.nn.Linear(_WIDTH, _WIDTH, device=device) for _ in range(3))
        self.joined, self.up, self.down = (torch.nn.Linear(_WIDTH, _WIDTH, device=device) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = self.norms[0](x)
        shape = (_BATCH, _LENGTH, _HEADS, _WIDTH // _HEADS)
        query, key, value = (head(whole).reshape(shape).permute(0, 2, 1, 3) for head in self.heads)
        told = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.joined(told.permute(0, 2, 1, 3).reshape(x.shape))
        found: torch.Tensor = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return found
