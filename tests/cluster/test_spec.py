"""Clusters: every preset loads, meshes have prime axes, and bad input is refused by field, value and limit."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from autosbp.cluster.spec import MAX_DEVICES, Cluster, load_cluster, presets, prime_factors
from autosbp.errors import InputError

PRESETS = sorted(presets()["clusters"])


def spec(**changes: Any) -> dict[str, Any]:
    level = {"name": "g", "count": 4, "latency_s": 1e-6, "bandwidth_bytes_per_s": 1e9}
    return {
        "schema": "autosbp.cluster/1",
        "name": "c",
        "device": "cpu-rank",
        "levels": [level],
        "source": "s",
    } | changes


DEVICE = {
    "name": "x",
    "kind": "cpu",
    "memory_bytes": 1,
    "peak_flops": {"float32": 1.0},
    "memory_bandwidth_bytes_per_s": 1.0,
}


def level(name: str = "g", **changes: Any) -> dict[str, Any]:
    return {"name": name, "count": 4, "latency_s": 1e-6, "bandwidth_bytes_per_s": 1e9} | changes


@pytest.mark.parametrize("name", PRESETS)
def test_preset_loads_and_round_trips(name: str) -> None:
    cluster = load_cluster(f"{name}:4")
    assert cluster.source and cluster.name == f"{name}:4"
    again = Cluster.from_dict(cluster.to_dict())
    assert again == cluster and again.cluster_hash == cluster.cluster_hash


@pytest.mark.parametrize("name", PRESETS)
def test_mesh_axes_are_primes_that_multiply_to_the_devices(name: str) -> None:
    for count in (1, 6, 7, 12):
        cluster = load_cluster(f"{name}:{count}")
        mesh = cluster.mesh()
        assert all(prime_factors(axis.size) == [axis.size] for axis in mesh.axes)
        assert mesh.size == cluster.num_devices == prod(level.count for level in cluster.levels)
        assert [axis.level for axis in mesh.axes] == sorted(axis.level for axis in mesh.axes)


def test_every_device_and_cluster_cites_its_source() -> None:
    data = presets()
    assert all(entry["source"] for group in ("devices", "clusters") for entry in data[group].values())
    assert {"cpu-rank", "p100-16g", "v100-16g", "a100-40g", "a100-80g", "h100-80g", "h200-141g"} == set(data["devices"])


@pytest.mark.parametrize("preset", presets()["clusters"])
def test_every_link_says_its_peak_and_what_is_reached_of_it(preset: str) -> None:
    entry = presets()["clusters"][preset]
    groups = entry.get("groups", [{"levels": entry.get("levels")}])
    levels = {f"{group['name']}.{level['name']}" if "name" in group else level["name"]: level["bandwidth_bytes_per_s"]
              for group in groups for level in group["levels"]}  # fmt: skip
    levels |= {"link": entry["link"]["bandwidth_bytes_per_s"]} if "link" in entry else {}
    assert entry["links"].keys() == levels.keys()
    for name, bandwidth in levels.items():
        assert bandwidth <= entry["links"][name]["peak_bytes_per_s"] and entry["links"][name]["reached"]


def test_piz_daint_takes_what_its_network_reaches() -> None:
    assert load_cluster("piz-daint:16").levels[0].bandwidth_bytes_per_s == 1.9e9


PCIE_BYTES_PER_S = {3: 15.75e9, 4: 31.5e9, 5: 63.0e9}  # of 16 lanes, after their line code: PCI-SIG


@pytest.mark.parametrize(
    ("preset", "generation"),
    # What the slower of the device and the processor has: Pascal, Cascade Lake, Rome, Milan and Sapphire Rapids.
    [("piz-daint", 3), ("gcp-a100-16", 3), ("aws-p4d", 3), ("dgx-a100-80g", 4), ("aws-p5", 4), ("dgx-h100", 5)],
)
def test_no_preset_copies_to_its_host_faster_than_its_lanes(preset: str, generation: int) -> None:
    host = load_cluster(f"{preset}:1").host
    assert host is not None
    assert 0.5 < host.link_bytes_per_s / PCIE_BYTES_PER_S[generation] < 1


def test_no_preset_has_more_memory_than_a_driver_shows() -> None:
    shown_mib = {"a100-40g": 40960, "a100-80g": 81920, "h100-80g": 81559, "h200-141g": 143771}  # nvidia-smi
    devices = presets()["devices"]
    assert all(devices[name]["memory_bytes"] <= mib * 2**20 for name, mib in shown_mib.items())


def test_preset_counts() -> None:
    assert [level.count for level in load_cluster("local").levels] == [1, 4]
    assert [level.count for level in load_cluster("local:4").levels] == [4]
    assert [level.count for level in load_cluster("local:2x2").levels] == [2, 2]
    assert [level.count for level in load_cluster("dgx-a100-80g:8").levels] == [8, 8]
    assert [level.count for level in load_cluster("summit:64").levels] == [64, 6]
    assert [level.count for level in load_cluster("gcp-a100-16:2x8").levels] == [2, 8]
    assert [level.count for level in load_cluster("piz-daint:64").levels] == [64]


def test_axis_names_of_two_nodes_of_eight() -> None:
    axes = load_cluster("dgx-h100:2").mesh().axes
    assert [(axis.name, axis.size) for axis in axes] == [("n0", 2), ("g0", 2), ("g1", 2), ("g2", 2)]


def test_yaml_file_equals_its_dict(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(spec()))
    assert load_cluster(str(path)) == Cluster.from_dict(spec())


@pytest.mark.parametrize(
    ("given", "field", "limit"),
    [
        ("local:0", "cluster.nodes", f"[1, {MAX_DEVICES}]"),
        ("local:2x0", "cluster.devices_per_node", f"[1, {MAX_DEVICES}]"),
        (f"local:{2**63}", "cluster.nodes", f"[1, {MAX_DEVICES}]"),
        (f"dgx-h100:{MAX_DEVICES}", "levels", f"at most {MAX_DEVICES} devices"),
        ("local:", "cluster", "PRESET:NODES"),
        ("local:-1", "cluster", "PRESET:NODES"),
        ("local:٣", "cluster", "PRESET:NODES"),
        ("local:2x2x2", "cluster", "PRESET:NODES"),
        ("piz-daint:2x2", "cluster", "one device per node"),
        ("cray:2", "cluster", "piz-daint"),
        ("", "cluster", "piz-daint"),
        ("no-such-file.yaml", "file", "readable"),
    ],
)
def test_bad_spec_names_field_value_and_limit(given: str, field: str, limit: str) -> None:
    with pytest.raises(InputError) as caught:
        load_cluster(given)
    assert caught.value.field == field
    assert limit in caught.value.limit
    assert repr(caught.value.value) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "field", "limit"),
    [
        ({"levels": [level(count=0)]}, "levels[0].count", "[1,"),
        ({"levels": [level(count=2**63)]}, "levels[0].count", f"{MAX_DEVICES}]"),
        ({"levels": [level(count=True)]}, "levels[0].count", "integer"),
        ({"levels": [level(count=2.0)]}, "levels[0].count", "integer"),
        ({"levels": [level(bandwidth_bytes_per_s=-1.0)]}, "levels[0].bandwidth_bytes_per_s", "[1, 1e+24]"),
        ({"levels": [level(bandwidth_bytes_per_s=0)]}, "levels[0].bandwidth_bytes_per_s", "[1, 1e+24]"),
        ({"levels": [level(bandwidth_bytes_per_s=float("inf"))]}, "levels[0].bandwidth_bytes_per_s", "[1, 1e+24]"),
        ({"levels": [level(bandwidth_bytes_per_s=float("nan"))]}, "levels[0].bandwidth_bytes_per_s", "[1, 1e+24]"),
        ({"levels": [level(latency_s=float("inf"))]}, "levels[0].latency_s", "[0, 10]"),
        ({"levels": [level(latency_s=-1e-6)]}, "levels[0].latency_s", "[0, 10]"),
        ({"levels": [level(name="G0")]}, "levels[0].name", "lower-case"),
        ({"levels": [level(speed=1)]}, "levels[0].speed", "known fields"),
        ({"levels": [level("n"), level("m"), level("g")]}, "levels", "one level (devices) or two"),
        ({"levels": []}, "levels", "one level (devices) or two"),
        ({"levels": [level("n", count=2**20), level("g")]}, "levels", f"at most {MAX_DEVICES}"),
        ({"levels": [level(), level()]}, "levels", "must differ"),
        ({"levels": {"g": 4}}, "levels", "list"),
        ({"device": "tpu"}, "device", "a100-80g"),
        ({"device": {"name": "x"}}, "device.peak_flops", "required"),
        ({"device": {**DEVICE, "peak_flops": {"float32": 1e-300}}}, "device.peak_flops.float32", "[1, 1e+24]"),
        (
            {"device": {**DEVICE, "memory_bandwidth_bytes_per_s": 5e-324}},
            "device.memory_bandwidth_bytes_per_s",
            "[1, 1e+24]",
        ),
        ({"schema": "autosbp.cluster/9"}, "schema", "autosbp.cluster/1"),
        ({"source": 7}, "source", "string"),
        ({"owner": "me"}, "owner", "known fields"),
    ],
)
def test_bad_file_names_field_value_and_limit(changes: dict[str, Any], field: str, limit: str) -> None:
    with pytest.raises(InputError) as caught:
        Cluster.from_dict(spec(**changes))
    assert caught.value.field == field
    assert limit in caught.value.limit


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"peak_flops": {}}, "device.peak_flops"),
        ({"peak_flops": {"float32": float("inf")}}, "device.peak_flops.float32"),
        ({"peak_flops": {"int8": 1.0}}, "device.peak_flops.int8"),
        ({"memory_bytes": 0}, "device.memory_bytes"),
        ({"kind": "tpu"}, "device.kind"),
        ({"efficiency": 1.5}, "device.efficiency"),
    ],
)
def test_bad_device_names_the_field(changes: dict[str, Any], field: str) -> None:
    device = load_cluster("local:1").device.to_dict() | changes
    with pytest.raises(InputError) as caught:
        Cluster.from_dict(spec(device=device))
    assert caught.value.field == field


SCHEMA = json.loads((files("autosbp") / "data" / "cluster.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)


def test_the_published_schema_is_valid_and_takes_what_is_shipped() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$defs"]["preset_device"]["enum"] == sorted(presets()["devices"])
    for name, spec in presets()["clusters"].items():
        shipped = {key: value for key, value in spec.items() if key != "links"}
        VALIDATOR.validate({"schema": "autosbp.cluster/1", "name": name, **shipped})
        VALIDATOR.validate(load_cluster(name).to_dict())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", "autosbp.cluster/2"),
        ("name", ""),
        ("name", 3),
        ("extra", 1),
        ("levels", []),
        ("levels", {}),
        ("levels.0.name", "N"),
        ("levels.0.count", 0),
        ("levels.0.count", 2**20 + 1),
        ("levels.0.count", True),
        ("levels.0.latency_s", -1),
        ("levels.0.latency_s", 11),
        ("levels.0.bandwidth_bytes_per_s", 0),
        ("levels.0.extra", 1),
        ("device", "nonsense"),
        ("device.kind", "tpu"),
        ("device.memory_bytes", 0),
        ("device.peak_flops", {}),
        ("device.peak_flops.float4", 1.0),
        ("device.peak_flops.float32", -1.0),
        ("device.efficiency", 2),
        ("device.op_overhead_s", 2),
        ("device.curves", {}),
        ("host", {"link_bytes_per_s": 1}),
        ("source", None),
    ],
)
def test_the_published_schema_refuses_what_the_reader_refuses(path: str, value: Any) -> None:
    document = copy.deepcopy(load_cluster("dgx-a100-80g:2").to_dict())
    VALIDATOR.validate(document)
    place: Any = document
    steps = path.split(".")
    for step in steps[:-1]:
        place = place[int(step) if isinstance(place, list) else step]
    place[steps[-1]] = value
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(InputError):
        Cluster.from_dict(document)


def test_the_published_schema_accepts_groups_with_a_link() -> None:
    grouped: dict[str, Any] = {
        "schema": "autosbp.cluster/1",
        "name": "mixed",
        "groups": [{"preset": "dgx-a100-80g:2"}, {"name": "old", "preset": "dgx-h100:1"}],
        "link": {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e10},
    }
    VALIDATOR.validate(grouped)
    VALIDATOR.validate(Cluster.from_dict(grouped).to_dict())
    alone = load_cluster("local:2").to_dict()
    for wrong in (
        {name: value for name, value in grouped.items() if name != "link"},
        {**grouped, "groups": grouped["groups"][:1]},
        {**grouped, "link": {"latency_s": 1e-5}},
        {**alone, "link": grouped["link"]},
        {name: value for name, value in alone.items() if name != "levels"},
    ):
        assert not VALIDATOR.is_valid(wrong)
        with pytest.raises(InputError):
            Cluster.from_dict(wrong)
