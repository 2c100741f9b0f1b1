"""Train a small GPT-2 of transformers on a text with ``autosbp.training.Trainer``.

    autosbp plan examples.train_gpt2:factory --cluster local:2x2 --global-batch 16 -o plan.json
    torchrun --nproc-per-node 4 examples/train_gpt2.py plan.json                  # on examples/data/shakespeare.txt
    torchrun --nproc-per-node 4 examples/train_gpt2.py plan.json my-text.txt my-run 1000

The same without a script:

    autosbp train plan.json --model examples.train_gpt2:factory --data examples/data/shakespeare.txt

Tokens are bytes. A run that was killed resumes from its newest checkpoint when it is started again.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import autosbp
from autosbp.plan.plan import Plan
from autosbp.training import Trainer, TrainerSettings, export_safetensors, load_dataset
from autosbp.utils.json_io import read_file

TEXT = Path(__file__).parent / "data" / "shakespeare.txt"
LENGTH, STEPS = 64, 300
SETTINGS = TrainerSettings(steps=STEPS, learning_rate=1e-3, warmup=20, checkpoint_every=50, log_every=10)


def factory() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model and its inputs, for ``autosbp plan`` and ``autosbp train``."""
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=128, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    config.loss_type = "ForCausalLM"
    return GPT2LMHeadModel(config), {name: torch.zeros(2, LENGTH, dtype=torch.long) for name in ("input_ids", "labels")}


def main(plan_file: str, text: str = str(TEXT), folder: str = "run-gpt2", steps: int | str = STEPS) -> None:
    plan = Plan.from_dict(read_file(Path(plan_file)))
    torch.manual_seed(SETTINGS.seed)
    module, example = factory()
    model = autosbp.parallelize(module, plan, example=example)
    settings = replace(SETTINGS, steps=int(steps), warmup=min(SETTINGS.warmup, int(steps)))
    trainer = Trainer(model, plan.document, load_dataset([text], model.graph, module), folder, settings)
    trainer.run()
    export_safetensors(model, Path(folder) / "model.safetensors")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
