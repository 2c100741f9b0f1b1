"""One run of four real ranks trains every strategy of every model once; the tests of this folder read its report."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autosbp.api import LogicalGraph, PlanOptions, capture, capture_hf_config, load_cluster, make_plan
from autosbp.costmodel.recompute import with_full_checkpointing
from autosbp.launch.local import run_ranks
from autosbp.plan.plan import GATHERS, Strategy
from autosbp.program.parameter_sharding import shard_parameters
from autosbp.search.problem.baselines import BASELINES
from autosbp.testing.strategy_samples import sample_strategies
from tests.executor.hand_made import (
    partial_extrema,
    rescaled,
    three_matmuls,
    three_matmuls_strategy,
    two_dimensional,
)
from tests.tiers import form

GPT2 = {
    "model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 128, "vocab_size": 512,
    "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 128,
}  # fmt: skip
MAMBA = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "vocab_size": 64}


@cache
def graph_of(name: str) -> LogicalGraph:
    """The models under test, captured once."""
    if name == "gpt2":
        return capture_hf_config(GPT2, seq_len=32)
    if name == "llama":
        return capture_hf_config(LLAMA, seq_len=32)
    if name == "mamba":
        return capture_hf_config(MAMBA, seq_len=8)
    made = {"three_matmuls": three_matmuls, "rescaled": rescaled}
    return made[name]() if name in made else capture("zoo:mlp-small")


def labelled_strategies(name: str, count: int, *, every: bool) -> dict[str, Strategy]:
    """The plan, ``count`` sampled strategies, two with gradient accumulation, also with parameters that are stored split,
    and, for ``every`` kind, baselines, and some of all these with every block run again, two together, or half of them."""
    graph, cluster = graph_of(name), load_cluster("local:2x2")
    # At one microbatch, zero2 is zero1; without convolutions, one weird trick is Megatron's grid.
    names = tuple(name for name in BASELINES if name not in ("zero2", "one_weird_trick"))
    asked = PlanOptions(global_batch=8, stages=1, baselines=names if every else ())
    plan = make_plan(graph, cluster, None, asked)
    found = {"plan": plan.strategy}
    for baseline in plan.document["baseline_strategies"]:
        found[baseline] = plan.baseline_strategy(baseline)
    for at, strategy in enumerate(sample_strategies(graph, cluster, count, global_batch=8, micro_batch=8)):
        found[f"sample {at}"] = strategy
    for at, strategy in enumerate(sample_strategies(graph, cluster, 2, global_batch=16, micro_batch=8, seed=7)):
        found[f"accumulated {at}"] = strategy
        found[f"stored apart {at}"] = shard_parameters(graph, strategy, GATHERS[at])
    for label in ("plan", "accumulated 0", "stored apart 0", "stored apart 1") if every else ():
        bound = graph.bind(**dict.fromkeys(graph.symbols, found[label].micro_batch))
        found[f"recomputed {label}"] = replace(with_full_checkpointing(bound, found[label]), bucket_bytes=20_000)
    if every:
        found["recomputed together"] = with_full_checkpointing(bound, found["stored apart 1"], 2)
        runs = found["recomputed accumulated 0"].recompute
        found["recomputed in part"] = replace(found["accumulated 0"], recompute=runs[: len(runs) // 2])
        found["offloaded"] = replace(found["stored apart 1"], offload=True)
    return found


def run_cases(folder: Path, dtype: str, counts: dict[str, int]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Reports of all ranks by (model, strategy)."""
    cases = []
    for name, count in counts.items():
        if name == "three_matmuls":
            strategies = {"P kept across two matmuls": three_matmuls_strategy()}
        elif name == "rescaled":
            strategies = {f"partial extrema {at}": each for at, each in enumerate(partial_extrema(rescaled(), count))}
        else:
            strategies = labelled_strategies(name, count, every=dtype == "float64" and name != "mamba")
        if name == "gpt2":
            strategies["2-D"] = two_dimensional(graph_of(name))
        cases.append({
            "model": name,
            "graph": graph_of(name).to_dict(),
            "strategies": [{"label": label, "strategy": each.to_dict()} for label, each in strategies.items()],
        })  # fmt: skip
    (folder / "request.json").write_text(json.dumps({"dtype": dtype, "cases": cases}))
    outcome = run_ranks(
        "tests.executor.equality_worker",
        [str(folder / "request.json"), str(folder / "result.json")],
        4,
        folder / "log",
        timeout_s=500,
    )
    assert outcome.reason == "", outcome.log_tail
    results = json.loads((folder / "result.json").read_text())
    return {(entry["model"], entry["label"]): entry["ranks"] for entry in results}


@pytest.fixture(scope="session")
def float64_reports(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[dict[str, Any]]]:
    counts = form(
        {"gpt2": 3, "mlp": 3, "llama": 1, "mamba": 1, "three_matmuls": 0, "rescaled": 4},
        {"gpt2": 12, "mlp": 10, "llama": 4, "mamba": 6, "three_matmuls": 0, "rescaled": 4},
    )
    return run_cases(tmp_path_factory.mktemp("float64"), "float64", counts)


@pytest.fixture(scope="session")
def float32_reports(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What trains in float64 runs the same programs: here are a few of each model, for numbers and bytes of this type."""
    return run_cases(
        tmp_path_factory.mktemp("float32"), "float32", form({"gpt2": 1, "mlp": 1}, {"gpt2": 3, "mlp": 3, "llama": 3})
    )
