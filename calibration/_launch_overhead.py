"""Measure the host's launch overhead per op, with transformer blocks so small that the GPU waits for the host."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
from torch.nn import functional

from autosbp.calibration._collectives import all_reduce_max
from autosbp.calibration._request import LAUNCH_OVERHEAD
from autosbp.costmodel.launch_overhead import LaunchOverhead

NUM_BLOCKS, NUM_REPEATS = 12, 9
OPS_OF_BLOCK = 20
"""Ops of one block as a graph counts them, including views."""
_BATCH, _LENGTH, _HEADS, _WIDTH = 2, 16, 4, 32


def measure_launch_overhead(device: torch.device, log: Any, made: set[str]) -> None:
    """Measure and log the launch overhead on GPUs, unless it is in ``made``.

    All ranks measure at once; the value is the slowest rank's.
    """
    if device.type != "cuda" or LAUNCH_OVERHEAD in made:
        return
    log.write({"begin": LAUNCH_OVERHEAD})
    found = process_launch_overhead(device)
    log.write({"launches": {name: all_reduce_max(seconds, device) for name, seconds in found.to_dict().items()}})


def process_launch_overhead(device: torch.device) -> LaunchOverhead:
    """Launch overhead per op of this process."""
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
    return LaunchOverhead(median(ahead) / num_ops, median(back) / num_ops)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _Block(torch.nn.Module):
    """Transformer block, unfused: attention and an MLP with norms and residual sums."""

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
