"""``torch.compile`` of lowered programs, on four real ranks: the numbers and collectives of the same program op by op.

GPT-2 with dropout is split along its batch on one axis and along heads and widths on the other; the perceptron gathers
its parameters in each use. ``inductor`` needs a C++ compiler, and a minute for GPT-2: without ``g++``, and for GPT-2 in the
short form, it is ``aot_eager``, which stops before its code.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autosbp.api import capture_hf_config
from autosbp.launch.local import run_ranks
from autosbp.program.parameter_sharding import shard_parameters
from tests.executor.conftest import GPT2
from tests.executor.hand_made import split_linears
from tests.executor.test_parameter_flow import data_parallel, perceptron
from tests.tiers import form

pytestmark = pytest.mark.integration


def run(folder: Path, compilers: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Reports of all ranks by model, each compiled as ``compilers`` says."""
    gpt2 = capture_hf_config({**GPT2, "n_layer": 1, "resid_pdrop": 0.1}, seq_len=32)
    gathering = shard_parameters(perceptron(), data_parallel(2), "use")
    cases = [
        {"label": "gpt2", "graph": gpt2.to_dict(), "strategy": split_linears(gpt2, ("b0",), ("k", "n")).to_dict()},
        {"label": "perceptron", "graph": perceptron().to_dict(), "strategy": gathering.to_dict()},
    ]  # fmt: skip
    asked = [{**case, "compiler": compilers[case["label"]]} for case in cases]
    (folder / "request.json").write_text(json.dumps({"cases": asked}))
    outcome = run_ranks(
        "tests.executor.compiled_worker",
        [str(folder / "request.json"), str(folder / "result.json")],
        4,
        folder / "log",
        timeout_s=500,
    )
    assert outcome.reason == "", outcome.log_tail
    return {entry["label"]: entry["ranks"] for entry in json.loads((folder / "result.json").read_text())}


@pytest.mark.slow
def test_compiled_programs_train_as_they_do_op_by_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each rank compiles in itself: a pool of compilers for each of the four would import torch once a process.
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    best = "inductor" if shutil.which("g++") else "aot_eager"
    reports = run(tmp_path, {"perceptron": best, "gpt2": form("aot_eager", best)})
    assert set(reports) == {"gpt2", "perceptron"}
    for label, ranks in reports.items():
        assert all(rank["loss"] <= 1e-9 and rank["gradient"] <= 1e-9 for rank in ranks), (label, ranks)
        assert all(rank["match"] for rank in ranks), label
    assert reports["gpt2"][0]["num_collectives"] > 8
    assert reports["perceptron"][0]["num_collectives"] > 2
