"""One run of four real ranks trains every case of the table once; the tests of this folder read its report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autosbp.api import LogicalGraph, capture_hf_config
from autosbp.costmodel.recompute import Segments, with_full_checkpointing
from autosbp.launch.local import run_ranks
from autosbp.plan.plan import Strategy
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from tests.executor.conftest import GPT2, graph_of
from tests.executor.pipeline.strategies import LAYOUTS, gated, pipelined
from tests.models.conftest import graph_of as model_of
from tests.tiers import form

CASES: dict[str, Sequence[tuple[int, str, str, int]]] = {
    # (stages, layout inside a stage, schedule, chunks a stage)
    "gpt2": (
        (2, "data parallel", GPIPE, 1), (2, "ZeRO-3", ONE_F_ONE_B, 1), (2, "tensor parallel", INTERLEAVED, 2),
        (2, "data parallel", ZERO_BUBBLE, 1), (2, "ZeRO-1", ZERO_BUBBLE, 1), (2, "ZeRO-1", ZERO_BUBBLE, 2),
        (4, "whole", GPIPE, 1),
        (4, "whole", ONE_F_ONE_B, 1), (4, "whole", INTERLEAVED, 2), (4, "whole", ZERO_BUBBLE, 1),
    ),
    "mlp": (
        (2, "ZeRO-3", INTERLEAVED, 2), (2, "tensor parallel", ZERO_BUBBLE, 2), (4, "whole", ZERO_BUBBLE, 2),
        *form((), ((2, "tensor parallel", GPIPE, 1), (2, "tensor parallel", ONE_F_ONE_B, 1))),
    ),
    "t5": (
        (2, "ZeRO-3", ZERO_BUBBLE, 2), (4, "whole", INTERLEAVED, 2),
        *form((), ((2, "tensor parallel", ONE_F_ONE_B, 1), (2, "ZeRO-1", INTERLEAVED, 2), (2, "ZeRO-1", ZERO_BUBBLE, 1))),
    ),
    "gated": tuple((4, "whole", schedule, 1) for schedule in (GPIPE, ONE_F_ONE_B, ZERO_BUBBLE)),
}  # fmt: skip
RECOMPUTED = {
    ("gpt2", "ZeRO-3", ONE_F_ONE_B), ("gpt2", "tensor parallel", INTERLEAVED), ("gpt2", "data parallel", ZERO_BUBBLE),
    ("gpt2", "whole", GPIPE), ("gpt2", "ZeRO-1", ZERO_BUBBLE), ("mlp", "ZeRO-3", INTERLEAVED),
    ("mlp", "tensor parallel", ZERO_BUBBLE),
}  # fmt: skip
"""Run once more, with every block recomputed."""
SOONER = {("gpt2", "ZeRO-1", ZERO_BUBBLE, 2), ("gpt2", "whole", ZERO_BUBBLE, 1), ("mlp", "whole", ZERO_BUBBLE, 2)}
"""Run once more, with gradients of weights that wait for no other pass, and for one."""
UNEVEN = ("gpt2", "whole", ONE_F_ONE_B)
"""Run once more, with what the first stage has of blocks recomputed alone, as search leaves it where memory binds there."""
DROPOUT = {**GPT2, "n_layer": 2, "embd_pdrop": 0.1, "resid_pdrop": 0.2}
Reports = dict[str, list[dict[str, Any]]]


def model(name: str) -> LogicalGraph:
    if name == "gated":
        return gated()
    return model_of("t5") if name == "t5" else graph_of(name)


def case(name: str, optimizer: str) -> dict[str, Any]:
    graph, strategies, made = model(name), [], {}
    for stages, layout, schedule, virtual in CASES[name]:
        if layout not in made:
            made[layout] = LAYOUTS[layout](graph, 4 // stages)
        strategy = pipelined(graph, made[layout], stages, schedule, virtual)
        strategy = replace(strategy, optimizer=optimizer)
        label = f"{name} {stages} stages {layout} {schedule.name} {virtual}"
        strategies.append({"label": label, "strategy": strategy.to_dict()})
        if (name, layout, schedule) in RECOMPUTED:
            bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
            again = with_full_checkpointing(bound, strategy)
            assert again.recompute
            offloaded = replace(again, offload=True)
            strategies.append({"label": f"{label} recomputed, offloaded", "strategy": offloaded.to_dict()})
        for lag in (0, 1) if (name, layout, schedule, virtual) in SOONER else ():
            assert strategy.pipeline is not None
            sooner = replace(strategy, pipeline=replace(strategy.pipeline, weights_lag=lag))
            strategies.append({"label": f"{label} lag {lag}", "strategy": sooner.to_dict()})
        if (name, layout, schedule) == UNEVEN:
            bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
            first = replace(strategy, recompute=_before(bound, with_full_checkpointing(bound, strategy)))
            strategies.append({"label": f"{label} recomputed in the first stage", "strategy": first.to_dict()})
    return {"model": name, "graph": graph.to_dict(), "strategies": strategies}


def _before(bound: LogicalGraph, every: Strategy) -> Segments:
    """Of the runs that are recomputed, those before the first cut; some, not all."""
    assert every.pipeline is not None
    places = {node.name: place for place, node in enumerate(bound.nodes)}
    found = tuple(run for run in every.recompute if places[run[1]] < places[every.pipeline.cuts[0]])
    assert 0 < len(found) < len(every.recompute)
    return found


def dropout() -> dict[str, Any]:
    """Against the same strategy without its pipeline."""
    graph = capture_hf_config(DROPOUT, seq_len=32)
    strategy = pipelined(graph, LAYOUTS["whole"](graph, 1), 4, ONE_F_ONE_B)
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    again = with_full_checkpointing(bound, strategy)
    assert again.recompute
    pairs = {"dropout": strategy, "dropout recomputed": again}
    labelled = [{"label": label, "strategy": each.to_dict()} for label, each in pairs.items()]
    return {"model": "dropout", "graph": graph.to_dict(), "strategies": labelled, "random": True}


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Reports of all ranks by case. GPT-2, and what runs in float32, trains with SGD: Adam makes a whole step of a gradient
    that is rounding, such as that of GPT-2's key bias."""
    folder = tmp_path_factory.mktemp("pipeline")
    cases = [case("gpt2", "sgd"), case("mlp", "adamw"), case("t5", "adamw"), case("gated", "sgd"), dropout()]
    single = case("mlp", "sgd")
    cases.append({**single, "strategies": single["strategies"][:3], "dtypes": ["float32"]})
    (folder / "request.json").write_text(json.dumps({"cases": cases}))
    arguments = [str(folder / "request.json"), str(folder / "result.json")]
    outcome = run_ranks("tests.executor.pipeline.worker", arguments, 4, folder / "log", timeout_s=300)
    assert outcome.reason == "", outcome.log_tail
    return {entry["label"]: entry["ranks"] for entry in json.loads((folder / "result.json").read_text())}
