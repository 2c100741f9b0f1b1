"""Train with an exported configuration. Runs in a trainer's environment, so it does not import autosbp.

``torchrun --nproc-per-node N ranks.py TRAINER FOLDER``. Checks with a small model that the trainer accepts the
configuration, trains with its degrees, and gives the losses of one device. Rank 0 writes ``FOLDER/losses``.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from parsers import stand_in_for_kernels  # the folder of this script comes first
from torch import nn

STEPS, WIDTH, LEARNING_RATE = 3, 32, 1e-2


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.relu(self.inner(x)))


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(4)))


def batches(size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(size, WIDTH, generator=draw), torch.randn(size, WIDTH, generator=draw)) for _ in range(STEPS)]


def one_device(size: int) -> list[float]:
    """Losses of the same training on one device."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for x, y in batches(size):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def mean_over_ranks(loss: torch.Tensor) -> float:
    total = loss.detach().float().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def deepspeed(folder: Path) -> tuple[list[float], list[float]]:
    import deepspeed as tool

    config = json.loads((folder / "deepspeed.json").read_text())
    tool.init_distributed(dist_backend="gloo")
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    engine, *_ = tool.initialize(model=model, optimizer=optimizer, config=config)
    assert engine.zero_optimization_stage() == config["zero_optimization"]["stage"]
    size, rank = config["train_micro_batch_size_per_gpu"], dist.get_rank()
    losses = []
    for x, y in batches(config["train_batch_size"]):
        parts = []
        for micro in range(config["gradient_accumulation_steps"]):
            at = (micro * dist.get_world_size() + rank) * size
            loss = nn.functional.mse_loss(engine(x[at : at + size]), y[at : at + size])
            engine.backward(loss)
            engine.step()
            parts.append(mean_over_ranks(loss))
        losses.append(sum(parts) / len(parts))
    return losses, one_device(config["train_batch_size"])


def accelerate(folder: Path) -> tuple[list[float], list[float]]:
    from accelerate import Accelerator
    from accelerate.utils import GradientAccumulationPlugin

    batch = json.loads((folder / "batch").read_text())
    plugin = GradientAccumulationPlugin(num_steps=batch["num_micro"], sync_each_batch=batch["sync_each_batch"])
    accelerator = Accelerator(gradient_accumulation_plugin=plugin)
    model = small_model()
    model._no_split_modules = ["Layer"]  # as models of Hugging Face name the layers to wrap
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    model, optimizer = accelerator.prepare(model, optimizer)
    size, rank, losses = batch["replica_batch"], accelerator.process_index, []
    for x, y in batches(batch["global_batch"]):
        parts = []
        for micro in range(batch["num_micro"]):
            at = (micro * accelerator.num_processes + rank) * size
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x[at : at + size]), y[at : at + size])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            parts.append(mean_over_ranks(loss))
        losses.append(sum(parts) / len(parts))
    return losses, one_device(batch["global_batch"])


def torchtitan(folder: Path) -> tuple[list[float], list[float]]:
    """torchtitan's parallelisation of its Llama 3 on Gloo, without its trainer, which needs an accelerator."""
    stand_in_for_kernels()
    torch._utils._get_available_device_type = lambda: "cpu"  # torchtitan takes CUDA where there is no accelerator
    from torch.distributed.fsdp import FSDPModule
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims
    from torchtitan.models.llama3 import Transformer, TransformerModelArgs, parallelize_llama

    dist.init_process_group("gloo")
    config = ConfigManager().parse_args(["--job.config_file", str(folder / "torchtitan.toml")])
    config.training.seq_len = 16
    given = config.parallelism
    dims = ParallelDims(
        dp_replicate=given.data_parallel_replicate_degree, dp_shard=given.data_parallel_shard_degree, cp=1,
        tp=given.tensor_parallel_degree, pp=1, ep=1, etp=1, world_size=dist.get_world_size(),
    )  # fmt: skip
    torch.manual_seed(0)
    model = Transformer(TransformerModelArgs(dim=32, n_layers=2, n_heads=4, vocab_size=64, max_seq_len=16))
    with torch.no_grad():
        model.init_weights()
    alone = copy.deepcopy(model)
    mesh = dims.build_mesh()
    del mesh
    parallelize_llama(model, dims, config)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # Gloo cannot scale sums
    draw, batch = torch.Generator().manual_seed(1), config.training.global_batch_size
    data = dims.dp_replicate * dims.dp_shard
    replica, size = dist.get_rank() // dims.tp, config.training.local_batch_size
    optimizers = [torch.optim.AdamW(each.parameters(), lr=LEARNING_RATE) for each in (model, alone)]
    losses, wanted = [], []
    for _ in range(STEPS):
        tokens = torch.randint(0, 64, (batch, 17), generator=draw)
        for optimizer in optimizers:
            optimizer.zero_grad()
        total = 0.0
        for at in range(replica * size, batch, data * size):
            loss = _forward_backward(model, tokens[at : at + size], size / batch, tensor=dims.tp > 1)
            total += mean_over_ranks(loss) * data
        wanted.append(float(_forward_backward(alone, tokens, 1.0, tensor=False)))
        losses.append(total)
        for optimizer in optimizers:
            optimizer.step()
    return losses, wanted


def _forward_backward(model: nn.Module, tokens: torch.Tensor, weight: float, tensor: bool) -> torch.Tensor:
    """Backpropagate the weighted cross entropy of next tokens; returns the loss."""
    from contextlib import nullcontext

    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import loss_parallel

    with loss_parallel() if tensor else nullcontext():
        found = model(tokens[:, :-1])
        loss = weight * nn.functional.cross_entropy(found.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


TRAINERS: dict[str, Callable[[Path], tuple[list[float], list[float]]]] = {
    each.__name__: each for each in (deepspeed, accelerate, torchtitan)
}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    losses, wanted = TRAINERS[name](folder)
    if dist.get_rank() == 0:
        (folder / "losses").write_text(json.dumps({"losses": losses, "one_device": wanted}))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # Gloo may end a rank with SIGABRT at interpreter exit


if __name__ == "__main__":
    main()
