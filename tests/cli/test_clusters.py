"""``clusters``: every preset is listed, and one is told in full with its sources."""

from __future__ import annotations

import json

import pytest

from autosbp.cluster.spec import Cluster, presets
from tests.cli.conftest import Run


def test_every_preset_is_listed(run: Run) -> None:
    shown = run("clusters").stdout
    assert all(name in shown for name in presets()["clusters"])


def test_json_holds_every_preset_with_both_sources(run: Run) -> None:
    found = json.loads(run("clusters", "--json").stdout)["clusters"]
    assert found.keys() == presets()["clusters"].keys()
    assert all(each["source"] and each["device_source"] for each in found.values())


def test_one_preset_is_a_cluster_file(run: Run) -> None:
    document = json.loads(run("clusters", "dgx-a100-80g:4", "--json").stdout)
    assert Cluster.from_dict(document).num_devices == 32
    assert "8192 x 8192 x 8192" in run("clusters", "dgx-a100-80g:4").stdout


@pytest.mark.parametrize("text", ["curves: matmul", "0.844", "data sheet", "HDR InfiniBand"])
def test_a_preset_is_shown_with_achieved_rates_and_sources(run: Run, text: str) -> None:
    assert text in " ".join(run("clusters", "dgx-a100-80g").stdout.split())


def test_an_unknown_preset_is_refused_with_the_known_ones(run: Run) -> None:
    done = run("clusters", "dgx-z9")
    assert done.exit_code == 2 and "dgx-h100" in done.stderr
