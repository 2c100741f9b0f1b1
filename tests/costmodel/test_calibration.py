"""Calibration files: they round-trip, and the reader refuses what a fit cannot be."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.costmodel.calibration import Calibration, CollectiveFit, OpTime, Point, Spread
from autosbp.errors import InputError
from autosbp.utils.json_io import canonical, loads


def example() -> Calibration:
    points = (Point(1024, 1e-3, 1e-4, 10), Point(4096, 1.5e-3, 1e-4, 10))
    fits = (
        CollectiveFit("all_reduce", (2, 1), 2e-4, 1e-9, 0.99, 0.05, 0.1, points),
        CollectiveFit("p2p", (2, 2), 1e-4, 2e-9, -0.5, 0.05, 0.1, points),
    )
    return Calibration(
        load_cluster("local:2x2"), "gloo", "relative", fits, {"op": OpTime(1e-3, 0.0)}, False, ("a note",)
    )


def test_round_trip_through_json_keeps_every_field_and_the_id() -> None:
    calibration = example()
    again = Calibration.from_dict(loads(canonical(calibration.to_dict())))
    assert again == calibration
    assert again.calibration_id == calibration.calibration_id
    assert json.dumps(again.to_dict()) == json.dumps(calibration.to_dict())


def test_a_stated_id_is_checked() -> None:
    document = example().to_dict() | {"calibration_id": example().calibration_id}
    assert Calibration.from_dict(document) == example()
    with pytest.raises(InputError, match="calibration_id"):
        Calibration.from_dict(document | {"method": "ols"})


def test_negative_alpha_of_plain_least_squares_round_trips() -> None:
    document = example().to_dict() | {"method": "ols"}
    document["collectives"][0]["alpha_s"] = -1e-4
    assert Calibration.from_dict(document).collectives[0].alpha_s == -1e-4


@pytest.mark.parametrize(("name", "value"), [("alpha_s", -1e-4), ("beta_s_per_byte", 0.0), ("beta_s_per_byte", -1e-9)])
def test_alpha_and_beta_that_only_plain_least_squares_gives_are_refused_of_others(name: str, value: float) -> None:
    document = example().to_dict()
    document["collectives"][1][name] = value
    assert Calibration.from_dict(document | {"method": "ols"})
    with pytest.raises(InputError, match=rf"^collectives\[1\].{name}: {value} is invalid"):
        Calibration.from_dict(document)


def test_an_interval_that_ends_before_it_begins_is_refused() -> None:
    document = example().to_dict()
    document["collectives"][0]["alpha_interval_s"] = [2e-4, 1e-4]
    with pytest.raises(InputError, match=r"^collectives\[0\].alpha_interval_s.high: 0.0001 is invalid: .* \[0.0002, "):
        Calibration.from_dict(document)


def test_fields_of_the_cluster_are_named_below_it() -> None:
    document = example().to_dict()
    document["cluster"]["levels"][0]["bandwidth_bytes_per_s"] = -5
    with pytest.raises(InputError, match=r"^cluster.levels\[0\].bandwidth_bytes_per_s: -5 is invalid"):
        Calibration.from_dict(document)


def test_knots_intervals_and_outliers_round_trip_and_old_documents_keep_their_id() -> None:
    document = example().to_dict()
    assert "knots" not in document["collectives"][0]
    new = {"knots": [[4096, 2e-9]], "alpha_interval_s": [1e-5, 3e-5], "outliers": [1024], "shared_with": ["p2p"]}
    document["collectives"][0].update(new)
    again = Calibration.from_dict(document).to_dict()["collectives"][0]
    assert {key: again[key] for key in new} == new


def test_spreads_placements_and_numbers_of_groups_round_trip() -> None:
    plain = example()
    spread = Spread(1e-5, (1e-3, 1e-3, 2e-3, 2e-3, 3e-3, 3e-3, 4e-3))
    first = plain.collectives[0]
    measured = replace(first, kind="broadcast", points=(replace(first.points[0], spread=spread),))
    variants = (
        replace(measured, placement="contiguous"),
        replace(measured, placement="strided"),
        replace(measured, num_groups=1),
    )
    calibration = replace(plain, collectives=variants)
    assert Calibration.from_dict(loads(canonical(calibration.to_dict()))) == calibration
    assert len({calibration.calibration_id, plain.calibration_id}) == 2


def test_a_document_of_the_first_release_keeps_its_bytes_and_its_id() -> None:
    document = json.loads((Path(__file__).parent / "data" / "calibration-1.json").read_text())
    calibration = Calibration.from_dict(document)
    # The preset has grown a host since.
    assert calibration == replace(example(), cluster=Cluster.from_dict(document["cluster"]))
    assert calibration.cluster.host is None
    assert calibration.cluster.levels == example().cluster.levels
    assert {**calibration.to_dict(), "calibration_id": calibration.calibration_id} == document


BAD: list[tuple[list[Any], Any, str]] = [
    (["schema"], "autosbp.calibration/2", "schema"),
    (["backend"], "mpi", "backend"),
    (["complete"], "false", "complete"),
    (["notes", 0], 3, "notes[0]"),
    (["extra"], 1, "extra"),
    (["cluster", "levels", 0, "count"], 0, "cluster.levels[0].count"),
    (["method"], "magic", "method"),
    (["collectives", 0, "kind"], "barrier", "collectives[0].kind"),
    (["collectives", 0, "placement"], "diagonal", "collectives[0].placement"),
    (["collectives", 0, "num_groups"], 0, "collectives[0].num_groups"),
    (["collectives", 0, "group_shape"], [2], "collectives[0].group_shape"),
    (["collectives", 0, "group_shape"], [4, 1], "collectives[0].group_shape[0]"),
    (["collectives", 0, "alpha_s"], float("inf"), "collectives[0].alpha_s"),
    (["collectives", 0, "beta_s_per_byte"], float("nan"), "collectives[0].beta_s_per_byte"),
    (["collectives", 0, "knots"], [[4096, 0.0]], "collectives[0].knots[0].beta_s_per_byte"),
    (["collectives", 0, "knots"], [[4096, 1e-9], [4096, 1e-9]], "collectives[0].knots[1].num_bytes"),
    (["collectives", 0, "outliers"], [0], "collectives[0].outliers"),
    (["collectives", 0, "shared_with"], [""], "collectives[0].shared_with"),
    (["collectives", 0, "shared_with"], [3], "collectives[0].shared_with"),
    (["collectives", 0, "alpha_interval_s"], [1.0], "collectives[0].alpha_interval_s"),
    (["collectives", 0, "r2"], 1.5, "collectives[0].r2"),
    (["collectives", 0, "max_relative_error"], -0.1, "collectives[0].max_relative_error"),
    (["collectives", 0, "points", 1], [1024], "collectives[0].points[1]"),
    (["collectives", 0, "points", 0, 0], 1024.5, "collectives[0].points[0].num_bytes"),
    (["collectives", 0, "points", 0, 1], 0.0, "collectives[0].points[0].median_s"),
    (["collectives", 1, "points", 0, 3], 0, "collectives[1].points[0].num_repeats"),
    (["collectives", 1, "points", 0], [1, 1.0, 1.0, 1, -1.0, [0.0] * 7], "collectives[1].points[0].mad_s"),
    (["collectives", 1, "points", 0], [1, 1.0, 1.0, 1, 0.0, [0.0] * 6], "collectives[1].points[0].quantiles_s"),
    (["collectives", 1, "points", 0], [1, 1.0, 1.0, 1, 0.0, [2.0] + [1.0] * 6], "collectives[1].points[0].quantiles_s"),
    (["collectives", 1, "points", 0], [1, 1.0, 1.0, 1, 0.0, [-1.0] * 7], "collectives[1].points[0].quantiles_s.0"),
    (["ops", "op"], [1.0], "ops[op]"),
    (["ops", "op"], [1.0, float("inf")], "ops[op].backward_s"),
    (["ops", "op"], {"forward_s": 1}, "ops[op]"),
    (["sharing"], {"speedup": 0.9, "units": [0] * 4}, "sharing.speedup"),
    (["sharing"], {"speedup": 65.0, "units": [0] * 4}, "sharing.speedup"),
    (["sharing"], {"speedup": 2.0, "units": [0, 1]}, "sharing.units"),
    (["sharing"], {"speedup": 2.0, "units": [0, 1, 4, 0]}, "sharing.units[2]"),
    (["sharing"], {"speedup": 2.0, "units": [0, 1, -1, 0]}, "sharing.units[2]"),
    (["sharing"], {"speedup": 2.0}, "sharing.units"),
    (["launches"], {"forward_s": 1e-5}, "launches.backward_s"),
    (["launches"], {"forward_s": 0.2, "backward_s": 1e-5}, "launches.forward_s"),
    (["launches"], {"forward_s": 1e-5, "backward_s": -1e-5}, "launches.backward_s"),
]


UNSAID = (
    "collectives[0].group_shape",
    "collectives[0].knots[1]",
    "collectives[1].points[0].quantiles_s",
    "sharing.units",
)
"""Fields in which the reader finds what a schema cannot say: that they fit the cluster, or ascend."""


def schema(name: str) -> Any:
    return json.loads((files("autosbp") / "data" / f"{name}.schema.json").read_text())


CLUSTER = Resource.from_contents(schema("cluster"))
VALIDATOR = Draft202012Validator(
    schema("calibration"), registry=Registry().with_resource("urn:autosbp:cluster:1", CLUSTER)
)


@pytest.mark.parametrize(("path", "value", "field"), BAD, ids=[".".join(map(str, path)) for path, _, _ in BAD])
def test_reader_refuses_by_field_and_so_does_the_published_schema(path: list[Any], value: Any, field: str) -> None:
    document = copy.deepcopy(example().to_dict())
    VALIDATOR.validate(document)
    target: Any = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(InputError) as caught:
        Calibration.from_dict(document)
    assert caught.value.field == field
    said = (
        not field.startswith(UNSAID) and "inf" not in repr(value) and "nan" not in repr(value)
    )  # JSON has no such numbers
    assert not said or not VALIDATOR.is_valid(document)


def test_the_published_schema_takes_older_and_newer_documents() -> None:
    Draft202012Validator.check_schema(VALIDATOR.schema)
    VALIDATOR.validate(json.loads((Path(__file__).parent / "data" / "calibration-1.json").read_text()))
    document = example().to_dict()
    document["collectives"][0] |= {
        "knots": [[4096, 2e-9]],
        "alpha_interval_s": [-1e-5, 3e-5],
        "outliers": [1024],
        "placement": "strided",
        "num_groups": 2,
        "waiting_s": 1e-4,
        "shared_with": ["broadcast", "p2p contiguous"],
        "points": [[1024, 1e-3, 0.0, 9, 0.0, [1e-3] * 7]],
    }
    document["corrections"] = [{"compute": 0.5, "network": 2.0, "waiting_s": 0.0, "num_trials": 1}]
    document["overlap"] = {"compute": 0.0, "network": 10.0}  # as before messages were measured
    document["sharing"] = {"speedup": 1.5, "units": [0, 1, 0, 1]}
    document["launches"] = {"forward_s": 3e-5, "backward_s": 5e-5}
    for overlap in ({}, {"message": 2.5}):
        document["overlap"] |= overlap
        VALIDATOR.validate(document)
        assert Calibration.from_dict(document).to_dict() == document
    document["overlap"]["message"] = 10.5
    with pytest.raises(InputError, match=r"overlap\.message"):
        Calibration.from_dict(document)


def test_two_fits_of_one_kind_and_shape_are_refused() -> None:
    document = example().to_dict()
    document["collectives"].append(document["collectives"][0])
    with pytest.raises(InputError, match=r"collectives\[2\]"):
        Calibration.from_dict(document)
