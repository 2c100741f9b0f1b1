"""Memory that a process allows itself for a while."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from autosbp.errors import InputError
from autosbp.limits import more_memory
from autosbp.sources import load_model

MIB = 2**20


def test_more_than_allowed_is_a_memory_error_and_less_is_not() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with more_memory(256 * MIB):
        assert len(bytearray(64 * MIB)) == 64 * MIB
        with pytest.raises(MemoryError):
            bytearray(512 * MIB)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(bytearray(512 * MIB)) == 512 * MIB


def test_a_lower_limit_stays() -> None:
    with more_memory(128 * MIB):
        lower = resource.getrlimit(resource.RLIMIT_DATA)
        with more_memory(512 * MIB):
            assert resource.getrlimit(resource.RLIMIT_DATA) == lower


@pytest.mark.parametrize("size", [10**9, 2**53])
def test_a_configuration_that_would_fill_the_memory_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "config.json"
    path.write_text(f'{{"model_type": "vit", "num_labels": {size}}}')
    with pytest.raises(InputError, match="config"):
        load_model(f"hf:{path}")
