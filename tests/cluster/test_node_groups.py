"""Clusters of unlike groups: what all devices at once get, what stages get, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from autosbp.cluster.hardware import Device
from autosbp.cluster.node_groups import fastest_device, slowest_device
from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.costmodel.hardware_scaling import scale_device_memory, scale_device_speed, scale_link_bandwidth
from autosbp.errors import InputError


def device(name: str, factor: float = 1.0, memory_bytes: int = 2**30, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "cpu",
        "memory_bytes": memory_bytes,
        "peak_flops": {"float32": 50e9 * factor},
        "memory_bandwidth_bytes_per_s": 11e9 * factor,
    } | changes


def levels(nodes: int, devices: int = 2, bytes_per_s: float = 1e9) -> list[dict[str, Any]]:
    return [
        {"name": "n", "count": nodes, "latency_s": 5e-4, "bandwidth_bytes_per_s": bytes_per_s},
        {"name": "g", "count": devices, "latency_s": 2e-4, "bandwidth_bytes_per_s": 4e9},
    ]


def document(**changes: Any) -> dict[str, Any]:
    return {
        "schema": "autosbp.cluster/1",
        "name": "mixed",
        "groups": [
            {"name": "fast", "device": device("new", 3.0, 2**31), "levels": levels(2, bytes_per_s=8e9)},
            {"name": "slow", "device": device("old"), "levels": levels(3, bytes_per_s=2e9)},
        ],
        "link": {"latency_s": 1e-3, "bandwidth_bytes_per_s": 1e9},
    } | changes


def test_the_combined_device_has_the_slowest_of_each_rate() -> None:
    cluster = Cluster.from_dict(document())
    assert cluster.num_devices == 10
    assert [level.count for level in cluster.levels] == [5, 2]
    assert cluster.device == Device("old", "cpu", 2**30, {"float32": 50e9}, 11e9)
    assert (cluster.levels[0].latency_s, cluster.levels[0].bandwidth_bytes_per_s) == (1e-3, 1e9)
    assert cluster.mean_memory_bytes == (4 * 2**31 + 6 * 2**30) // 10


def test_a_part_has_the_devices_and_links_of_its_groups() -> None:
    cluster = Cluster.from_dict(document())
    assert [cluster.groups_of(*ends) for ends in ((0, 3), (4, 9), (2, 5), (3, 3))] == [(0,), (1,), (0, 1), (0,)]
    fast, slow = cluster.part((0,)), cluster.part((1,))
    assert (fast.device.name, slow.device.name) == ("new", "old")
    assert [part.levels[0].bandwidth_bytes_per_s for part in (fast, slow)] == [8e9, 2e9]
    # Devices keep their numbers, so counts are those of the whole cluster.
    assert [level.count for level in fast.levels] == [5, 2]
    assert cluster.part((0, 1)) is cluster
    best = cluster.quickest()
    assert (best.device.name, best.levels[0].latency_s, best.levels[0].bandwidth_bytes_per_s) == ("new", 5e-4, 8e9)


def test_mixed_devices_are_combined_to_the_slowest_values() -> None:
    one = Device("one", "cpu", 10, {"float32": 4e9}, 1e9, efficiency=0.5)
    two = Device("two", "cpu", 20, {"float32": 3e9}, 2e9, efficiency=0.5)
    slow, quick = slowest_device([one, two]), fastest_device([one, two])
    assert (slow.achieved_flops("float32"), slow.copy_bytes_per_s, slow.memory_bytes) == (1.5e9, 1e9, 10)
    assert (quick.achieved_flops("float32"), quick.copy_bytes_per_s, quick.memory_bytes) == (2e9, 2e9, 20)
    assert slow.name == "slowest of one, two"


def test_the_document_reads_back_with_what_follows_from_the_groups() -> None:
    cluster = Cluster.from_dict(document())
    again = Cluster.from_dict(cluster.to_dict())
    assert again == cluster and again.cluster_hash == cluster.cluster_hash
    assert cluster.to_dict()["device"]["name"] == "old"
    with pytest.raises(InputError, match="must match the groups") as caught:
        Cluster.from_dict({**cluster.to_dict(), "device": "p100-16g"})
    assert caught.value.field == "device"


def test_groups_may_be_presets() -> None:
    groups = [{"preset": "dgx-a100-80g:2"}, {"preset": "dgx-h100:3", "name": "new"}]
    cluster = Cluster.from_dict(document(groups=groups))
    assert [group.name for group in cluster.groups] == ["a100-80g", "new"]
    assert cluster.num_devices == 40
    assert cluster.host is not None and cluster.host.link_bytes_per_s == 25e9


def test_the_preset_of_two_kinds_has_as_many_nodes_of_each() -> None:
    cluster = load_cluster("dgx-a100-and-v100:2")
    assert [group.num_devices for group in cluster.groups] == [16, 16]
    assert cluster.device.name == "v100-16g"


@pytest.mark.parametrize(
    ("change", "field", "limit"),
    [
        ({"groups": []}, "groups", "at least two"),
        ({"groups": [document()["groups"][0]] * 2}, "groups", "names of groups must differ"),
        ({"link": None}, "link", "mapping"),
        ({"link": {"latency_s": 0.1}}, "link.bandwidth_bytes_per_s", "required"),
        ({"link": {"latency_s": 0.1, "bandwidth_bytes_per_s": 0}}, "link.bandwidth_bytes_per_s", "[1, 1e+24]"),
        ({"nodes": 3}, "nodes", "known fields:"),
        ({"groups": [document()["groups"][0], {"preset": "dgx-z9:1"}]}, "groups[1].preset", "PRESET:NODES"),
        ({"groups": [document()["groups"][0], {"preset": "dgx-a100-and-v100:1"}]}, "groups[1].preset", "identical"),
        ({"groups": [document()["groups"][0], {"preset": "/etc/hosts.yaml"}]}, "groups[1].preset", "PRESET:NODES"),
        ({"groups": [document()["groups"][0], {"preset": "local:2x2"}, {"x": 1}]}, "groups[2].x", "known fields:"),
    ],
)
def test_bad_documents_name_the_field_the_value_and_the_limit(change: dict[str, Any], field: str, limit: str) -> None:
    with pytest.raises(InputError) as caught:
        Cluster.from_dict(document(**change))
    assert (caught.value.field, limit in caught.value.limit) == (field, True), caught.value


@pytest.mark.parametrize(
    ("change", "field", "limit"),
    [
        ({"device": device("gpu", kind="cuda")}, "groups[1].device.kind", "expected cpu"),
        ({"device": device("none", peak_flops={})}, "groups[1].device.peak_flops", "at least one"),
        ({"device": "z9"}, "groups[1].device", "p100-16g"),
        ({"levels": levels(2, 4)}, "groups[1].levels[1].count", "expected 2"),
        ({"levels": levels(2)[:1]}, "groups[1].levels", "expected levels ['n', 'g']"),
        ({"levels": levels(0)}, "groups[1].levels[0].count", "1"),
        ({"host": {}}, "groups[1].host.link_bytes_per_s", "required"),
    ],
)
def test_incompatible_groups_are_refused(change: dict[str, Any], field: str, limit: str) -> None:
    first, second = document()["groups"]
    with pytest.raises(InputError) as caught:
        Cluster.from_dict(document(groups=[first, second | change]))
    assert (caught.value.field, limit in caught.value.limit) == (field, True), caught.value


def test_a_link_without_groups_is_refused() -> None:
    with pytest.raises(InputError, match="joins groups"):
        Cluster.from_dict({**load_cluster("local:2x2").to_dict(), "link": document()["link"]})


def test_what_if_improves_every_group() -> None:
    cluster = Cluster.from_dict(document())
    wider = scale_link_bandwidth(cluster, None, 0, 2.0)[0]
    assert [group.levels[0].bandwidth_bytes_per_s for group in wider.groups] == [16e9, 4e9]
    assert wider.link is not None and wider.link.bandwidth_bytes_per_s == 2e9
    sooner = scale_device_speed(cluster, None, 2.0)[0]
    assert [group.device.peak_flops["float32"] for group in sooner.groups] == [300e9, 100e9]
    assert scale_device_memory(cluster, None, 2.0)[0].device.memory_bytes == 2**31
