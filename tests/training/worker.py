"""Rank script: trains the user's model under each plan, as a user's own script would."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

import autosbp
from autosbp.errors import InputError
from autosbp.training import ParallelModule
from autosbp.utils.processes import exit_rank
from tests.training.user_model import LanguageModel, Sentences, example

STEPS, EPOCH = 4, 2


def parameter_groups(named: Any) -> list[dict[str, Any]]:
    """Weight decay for matrices alone."""
    pairs = list(named)
    return [
        {"params": [each for name, each in pairs if not name.endswith(("bias", "norm.weight"))], "weight_decay": 0.1},
        {"params": [each for name, each in pairs if name.endswith(("bias", "norm.weight"))], "weight_decay": 0.0},
    ]


def train(model: torch.nn.Module, loader: Any, clip: Any, calls: int) -> dict[str, Any]:
    """Losses, norms of gradients and learning rates; ``calls`` forward and backward passes for each step."""
    optimizer = torch.optim.AdamW(parameter_groups(model.named_parameters()), lr=1e-2, betas=(0.8, 0.9))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    losses, norms = [], []
    batches = (batch for _ in range(EPOCH) for batch in loader)
    for _ in range(STEPS):
        for _ in range(calls):
            batch = next(batches)
            loss = model(**batch) / calls
            loss.backward()
            losses.append(float(loss.detach()))
        norms.append(float(clip(0.5, model, batch)))
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return {"losses": losses, "norms": norms}


def clip_after_evaluation(max_norm: float, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Clip by the model's own function; an evaluation before it changes no gradient, and torch's says the same where it
    sees all of the model."""
    model.eval()
    model(**batch)
    model.train()
    if model.strategy.pipeline is None:
        seen = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
        whole = float(seen.full_tensor() if isinstance(seen, DTensor) else seen)
        total: torch.Tensor = model.clip_grad_norm_(max_norm)
        assert abs(whole - float(total)) <= 1e-6 * whole, (whole, float(total))
        return total
    found: torch.Tensor = model.clip_grad_norm_(max_norm)
    return found


def full(model: ParallelModule) -> dict[str, torch.Tensor]:
    """Whole tensors of the state dict, of this rank's stage."""
    return {
        name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in model.state_dict().items()
    }


def refusals(model: ParallelModule) -> list[str]:
    """What is said of batches that are no batches of the model; all of them are refused before ranks communicate."""
    found = []
    whole = example(8)
    for batch in (
        {**whole, "mask": whole["tokens"]},
        {"labels": whole["labels"][:3], "tokens": whole["tokens"][:3]},
        {name: each[:, :5] for name, each in whole.items()},
        {},
    ):
        try:
            model(**batch)
        except InputError as error:
            found.append(str(error))
    return found


def run(case: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    module = LanguageModel(tied=case["tied"]).to(getattr(torch, case["dtype"]))
    plan = json.loads(Path(case["plan"]).read_text())
    weights = None
    if case["meta"]:
        weights = module.state_dict()
        with torch.device("meta"):
            module = LanguageModel(tied=case["tied"]).to(getattr(torch, case["dtype"]))
    model = autosbp.parallelize(module, plan, example=example(), weights=weights, compiler=case["compiler"])
    dataset = Sentences(40)
    if case["own_rows"]:
        loader = DataLoader(dataset, batch_sampler=model.batch_sampler(dataset, shuffle=False))
    else:
        loader = DataLoader(dataset, batch_size=8)
    report: dict[str, Any] = train(model, loader, clip_after_evaluation, case["calls"])
    report["rows"] = model.batch_rows
    report["dtypes"] = sorted({str(each.dtype) for each in model.parameters()})
    report["parameters"] = {name: each.double().tolist() for name, each in full(model).items()}
    report["refusals"] = refusals(model)
    model.eval()
    report["evaluated"] = float(model(**next(iter(DataLoader(dataset, batch_size=8)))))
    return report


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    reports = [run(case) for case in request]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, reports)
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(every))
    exit_rank()


if __name__ == "__main__":
    main()
