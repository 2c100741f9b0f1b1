"""Memory of a device that tensors cannot have, by device and kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosbp.cluster.hardware import presets, read_device
from autosbp.cluster.memory_reserve import memory_reserve, usable_memory_bytes

GIB = 2**30


def test_every_reserve_cites_its_source() -> None:
    assert all(entry["source"] for entry in presets()["reserves"].values())


@pytest.mark.parametrize(
    ("name", "least", "most"), [("a100-80g", 3.5, 5.0), ("h100-80g", 3.5, 5.0), ("p100-16g", 0.9, 1.5)]
)
def test_a_gpu_keeps_room_for_its_context_nccl_and_fragmentation(name: str, least: float, most: float) -> None:
    device = read_device(name)
    reserve = memory_reserve(device, 8)
    assert set(reserve) == {"context", "nccl", "fragmentation"} and all(reserve.values())
    assert least * GIB < sum(reserve.values()) < most * GIB
    assert usable_memory_bytes(device, 8) + sum(reserve.values()) == device.memory_bytes
    # Tensors that fill what is left, and 3 % more for the allocator's fragmentation, fit beside the two others.
    held = usable_memory_bytes(device, 8) * 1.03 + reserve["context"] + reserve["nccl"]
    assert held == pytest.approx(device.memory_bytes, rel=1e-9)


def test_a_device_of_another_name_has_the_reserve_of_its_kind_and_a_processor_none() -> None:
    device = read_device("a100-80g")
    assert memory_reserve(replace(device, name="b300"), 2) == memory_reserve(device, 2)
    assert memory_reserve(read_device("cpu-rank"), 2) == {}


def test_one_device_alone_loads_no_nccl() -> None:
    assert memory_reserve(read_device("h200-141g"), 1)["nccl"] == 0
