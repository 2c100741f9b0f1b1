"""Rank script: trains some steps, saving each, and goes on from what there is."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import autosbp
from autosbp.training.checkpoint import Checkpoints
from autosbp.utils.processes import exit_rank
from tests.training.user_model import LanguageModel, Sentences, example


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.manual_seed(0)
    module = LanguageModel(dropout=request["dropout"]).double()
    model = autosbp.parallelize(module, request["plan"], example=example())
    dataset = Sentences(40)
    sampler = model.batch_sampler(dataset, seed=5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.8, 0.9))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    checkpoints = Checkpoints(request["folder"], model, optimizer, keep=2, scheduler=scheduler, sampler=sampler)
    step, losses = checkpoints.load(), {}
    sys.stdout.write(f"rank {dist.get_rank()} begins after step {step}\n")
    while step < request["steps"]:
        for batch in DataLoader(dataset, batch_sampler=sampler):
            loss = model(**batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            step += 1
            losses[step] = float(loss.detach()).hex()
            checkpoints.save(step)
            if step == request["die_at"] and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.Signals[request["signal"]])
            if step == request["steps"]:
                break
    checkpoints.wait()
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(losses))
    exit_rank()


if __name__ == "__main__":
    main()
