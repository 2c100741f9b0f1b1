"""Transfers between meshes on real ranks: all pairs of layouts, forward, backward, and the bytes that were planned."""

from __future__ import annotations

import json

import pytest

from autosbp.launch.local import run_ranks
from tests.executor.transfer_worker import PAIRS, SHAPES

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How many transfers between each two meshes were right; a wrong one fails the ranks."""
    folder = tmp_path_factory.mktemp("transfer")
    outcome = run_ranks(
        "tests.executor.transfer_worker", [str(folder / "result.json")], 4, folder / "log", timeout_s=300
    )
    assert outcome.reason == "", outcome.log_tail
    found: dict[str, int] = json.loads((folder / "result.json").read_text())
    return found


@pytest.mark.parametrize("pair", PAIRS)
def test_tensors_gradients_and_bytes_are_as_planned_between_all_layouts(counts: dict[str, int], pair: str) -> None:
    src_mesh, dst_mesh = PAIRS[pair]
    shapes = SHAPES[:1] if dst_mesh.ndim > 1 else SHAPES
    assert counts[pair] == len(shapes) * 5 ** (src_mesh.ndim + dst_mesh.ndim)
