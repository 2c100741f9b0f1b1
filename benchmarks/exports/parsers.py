"""Check exported files with a trainer's own parser. Runs in the trainer's environment, so it does not import autosbp.

``python parsers.py TRAINER FOLDER...``: each folder has one export and a file ``ranks`` with the number of ranks. Prints
a JSON object: for each folder the error, or "".
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock


def stand_in_for_kernels() -> None:
    """Replace torchtitan's kernels for experts, which it imports but which are not used here; they need Triton."""
    for name in ("models.moe", "distributed.minimal_async_ep"):
        sys.modules.setdefault(f"torchtitan.{name}.kernels", MagicMock())


def _check_degrees(parallelism: Any, ranks: int, **more: int) -> None:
    """torchtitan's own check that degrees multiply to the number of ranks."""
    from torchtitan.distributed import ParallelDims

    ParallelDims(
        dp_replicate=parallelism.data_parallel_replicate_degree,
        dp_shard=parallelism.data_parallel_shard_degree,
        cp=parallelism.context_parallel_degree,
        tp=parallelism.tensor_parallel_degree,
        pp=parallelism.pipeline_parallel_degree,
        ep=1,
        world_size=ranks,
        **more,
    )


def torchtitan(folder: Path, ranks: int) -> None:
    stand_in_for_kernels()
    from torchtitan.config import ConfigManager

    config = ConfigManager().parse_args(["--job.config_file", str(folder / "torchtitan.toml")])
    _check_degrees(config.parallelism, ranks, etp=1)


def torchtitan03(folder: Path, ranks: int) -> None:
    stand_in_for_kernels()
    from torchtitan.config import ConfigManager

    sys.path.insert(0, str(folder))
    sys.modules.pop("autosbp_torchtitan", None)
    try:
        config = ConfigManager().parse_args(["--module", "autosbp_torchtitan", "--config", "autosbp"])
    finally:
        sys.path.remove(str(folder))
    _check_degrees(config.parallelism, ranks)


def deepspeed(folder: Path, ranks: int) -> None:
    from deepspeed.runtime import config as configuration

    # It asks for its rank before it asks mpu for the number of replicas, without which it takes one.
    configuration.dist = SimpleNamespace(get_rank=lambda: 0)

    document = json.loads((folder / "deepspeed.json").read_text())
    stages = 1
    module = folder / "deepspeed_pipeline.py"
    if module.exists():
        spec = importlib.util.spec_from_file_location("deepspeed_pipeline", module)
        assert spec is not None and spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        stages = loaded.NUM_STAGES
    tensor = document.get("tensor_parallel", {}).get("autotp_size", 1)
    data = ranks // (tensor * stages)
    config = configuration.DeepSpeedConfig(document, mpu=SimpleNamespace(get_data_parallel_world_size=lambda: data))
    assert config.train_batch_size == document["train_batch_size"]
    assert config.gradient_accumulation_steps == document["gradient_accumulation_steps"]
    assert config.zero_optimization_stage == document["zero_optimization"]["stage"]


def megatron(folder: Path, ranks: int) -> None:
    import torch
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    script = f'. {folder / "megatron_args.sh"}; printf "%q " "${{AUTOSBP_ARGS[@]}}"'
    words = shlex.split(subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout)
    given: dict[str, Any] = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            value = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else "true"
            given[word.removeprefix("--").replace("-", "_")] = value
    numbers = {name: int(value) if value.isdecimal() else value == "true" or value for name, value in given.items()}
    tensor, stages = numbers["tensor_model_parallel_size"], numbers["pipeline_model_parallel_size"]
    data = ranks // (tensor * stages)
    assert data * tensor * stages == ranks
    layout = numbers.pop("pipeline_model_parallel_layout", None)
    layers = 2 * stages * numbers.get("num_virtual_stages_per_pipeline_rank", 1)
    if layout is not None:
        parsed = PipelineParallelLayerLayout.from_str(layout, stages)
        layers = sum(str(each).count("decoder") for part in parsed.layout for each in part)
    known = {"fp8_format": "fp8"} | {
        name: name
        for name in (
            *("bf16", "fp16", "fp8_recipe", "sequence_parallel"),
            *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
            *("recompute_granularity", "recompute_method", "recompute_num_layers"),
        )
    }
    model = {own: numbers[name] for name, own in known.items() if name in numbers}
    virtual = numbers.get("num_virtual_stages_per_pipeline_rank")
    TransformerConfig(
        num_layers=layers,
        hidden_size=64 * tensor,
        num_attention_heads=tensor,
        virtual_pipeline_model_parallel_size=virtual,
        pipeline_dtype=torch.bfloat16,
        **model,
    )
    DistributedDataParallelConfig(
        grad_reduce_in_fp32=numbers.get("accumulate_allreduce_grads_in_fp32", False),
        overlap_grad_reduce=numbers.get("overlap_grad_reduce", False),
        overlap_param_gather=numbers.get("overlap_param_gather", False),
        use_distributed_optimizer=numbers.get("use_distributed_optimizer", False),
        num_distributed_optimizer_instances=numbers.get("num_distributed_optimizer_instances", 1),
        bucket_size=numbers.get("ddp_bucket_size"),
    )
    OptimizerConfig(
        optimizer=numbers["optimizer"],
        bf16=numbers.get("bf16", False),
        fp16=numbers.get("fp16", False),
        use_distributed_optimizer=numbers.get("use_distributed_optimizer", False),
    )
    ConstantNumMicroBatchesCalculator(numbers["global_batch_size"], numbers["micro_batch_size"], data, False, 0)


def accelerate(folder: Path, ranks: int) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    path = str(folder / "accelerate.yaml")
    config = load_config_from_file(path)
    assert config.num_processes == ranks
    args = launch_command_parser().parse_args(["--config_file", path, "train.py"])
    _validate_launch_command(args)


PARSERS: dict[str, Callable[[Path, int], None]] = {
    each.__name__: each for each in (torchtitan, torchtitan03, deepspeed, megatron, accelerate)
}


def main() -> None:
    name, *folders = sys.argv[1:]
    found = {}
    for folder in folders:
        try:
            PARSERS[name](Path(folder), int((Path(folder) / "ranks").read_text()))
            found[folder] = ""
        except BaseException:  # noqa: BLE001 - parsers exit, assert and raise errors of their own
            found[folder] = traceback.format_exc(limit=-2)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
