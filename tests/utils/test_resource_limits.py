"""Memory that a process allows itself for a while."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from autosbp.errors import InputError
from autosbp.graph_sources import load_model
from autosbp.utils import resource_limits
from autosbp.utils.resource_limits import free_bytes, memory_limit

pytestmark = pytest.mark.integration

MIB = 2**20


def test_allocations_beyond_the_limit_raise_memory_error() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory_limit(256 * MIB):
        assert len(bytearray(64 * MIB)) == 64 * MIB
        with pytest.raises(MemoryError):
            bytearray(512 * MIB)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(bytearray(512 * MIB)) == 512 * MIB


def test_a_lower_limit_stays() -> None:
    with memory_limit(128 * MIB):
        lower = resource.getrlimit(resource.RLIMIT_DATA)
        with memory_limit(512 * MIB):
            assert resource.getrlimit(resource.RLIMIT_DATA) == lower


def test_what_is_free_is_the_least_of_the_machine_and_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (free_bytes() or 0) > 64 * MIB
    machine, group = tmp_path / "meminfo", tmp_path / "group"
    monkeypatch.setattr(resource_limits, "_MEMORY", machine)
    monkeypatch.setattr(resource_limits, "_GROUP", group)
    assert free_bytes() is None
    machine.write_text("MemTotal: 9999 kB\nMemAvailable:    1024 kB\n")
    assert free_bytes() == MIB
    group.mkdir()
    (group / "memory.current").write_text("1000\n")
    for most, left in (("max\n", MIB), ("5000\n", 4000), ("900\n", 0)):
        (group / "memory.max").write_text(most)
        assert free_bytes() == left


@pytest.mark.parametrize("size", [10**9, 2**53])
def test_a_configuration_that_would_fill_the_memory_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "config.json"
    path.write_text(f'{{"model_type": "vit", "num_labels": {size}}}')
    with pytest.raises(InputError, match="config"):
        load_model(f"hf:{path}")
