from __future__ import annotations

import gzip
import importlib.metadata
import json
import subprocess
import sys
from importlib.resources import files

import pytest

from autosbp.errors import InputError
from autosbp.graph.serialize import from_dict
from autosbp.graph_sources import load_model
from autosbp.utils.json_io import canonical, loads
from autosbp.zoo import build, zoo_graph, zoo_names
from autosbp.zoo.catalog import read_catalog

pytestmark = pytest.mark.integration

FOLDER = files("autosbp") / "data" / "zoo"
PARAMETERS = {
    "gpt2": 124_439_808,  # https://huggingface.co/openai-community/gpt2, ties included
    "gpt2-1.5b": 1_557_611_200,  # https://huggingface.co/openai-community/gpt2-xl
    "llama-7b": 6_738_415_616,  # https://huggingface.co/meta-llama/Llama-2-7b-hf
    "llama-70b": 68_976_648_192,  # https://huggingface.co/meta-llama/Llama-2-70b-hf
    "t5-large": 737_668_096,  # https://huggingface.co/google-t5/t5-large
    "vit-large": 304_326_632,  # https://docs.pytorch.org/vision/stable/models/generated/torchvision.models.vit_l_16.html
    "vgg13": 133_047_848,  # arXiv 1409.1556 table 2: 133 million
    "vgg16": 138_357_544,  # arXiv 1409.1556 table 2: 138 million
    "resnet50": 25_557_032,  # https://docs.pytorch.org/vision/stable/models/generated/torchvision.models.resnet50.html
}
BLOCKS = {
    "gpt2": [12], "gpt2-1.5b": [48], "gpt2-demo": [4], "gpt3-175b": [96], "llama-demo": [3], "llama-7b": [31],
    "llama-70b": [79], "moe": [5], "resnet50": [2, 3, 5, 2], "wide-deep": [8, 26], "bert-large": [24], "t5-large": [23],
    "vit-large": [24], "gpt-1t": [128],
}  # fmt: skip
MAX_SHIPPED_BYTES = 32 * 1024
VERSIONS = {"torch": "2.13", "transformers": "5.23"}
"""What the shipped files were built with; other versions may trace other ops."""


def test_every_model_of_the_catalog_ships() -> None:
    assert set(zoo_names()) == set(read_catalog())


@pytest.mark.parametrize("name", zoo_names())
def test_a_shipped_graph_loads_and_round_trips_within_its_size(name: str) -> None:
    data = (FOLDER / f"{name}.json.gz").read_bytes()
    assert len(data) <= MAX_SHIPPED_BYTES
    document = loads(gzip.decompress(data))
    graph = load_model(f"zoo:{name}")
    assert graph.name == name
    assert graph.provenance["origin"]
    assert canonical(graph.to_dict()) == canonical(document)
    again = from_dict(graph.to_dict())
    assert again == graph
    assert again.graph_hash == graph.graph_hash


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    assert zoo_graph(name).summary()["num_parameters"] == PARAMETERS[name]


@pytest.mark.parametrize(("name", "count"), [("gpt3-175b", 175e9), ("gpt-1t", 1008e9), ("bert-large", 340e6)])
def test_parameter_counts_are_about_those_of_the_papers(name: str, count: float) -> None:
    assert zoo_graph(name).summary()["num_parameters"] == pytest.approx(count, rel=0.02)


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_layers_are_written_once(name: str) -> None:
    counts = [entry["repeat"] for entry in zoo_graph(name).to_dict()["nodes"] if "repeat" in entry]
    assert counts == BLOCKS[name]


@pytest.mark.parametrize("name", ["gpt2-demo", "mlp-small", "resnet50-small", "wide-deep-small", "moe-small"])
def test_rebuilding_gives_identical_bytes(name: str) -> None:
    for package, version in VERSIONS.items():
        if not importlib.metadata.version(package).startswith(f"{version}."):
            pytest.skip(f"the zoo is built with {package} {version}")
    assert build.compressed_document(build.build(name)) == (FOLDER / f"{name}.json.gz").read_bytes()


def test_an_unknown_name_lists_the_known_ones() -> None:
    for read in (zoo_graph, build.build):
        with pytest.raises(InputError, match="gpt2-demo"):
            read("gpt5")


def test_the_build_command_names_what_it_cannot_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["no-such-model"]) == 2
    assert "no-such-model" in capsys.readouterr().err


def test_loading_the_largest_model_imports_no_torch() -> None:
    program = (
        "import json, sys, autosbp.api; graph = autosbp.api.capture('zoo:gpt3-175b');"
        "heavy = {'torch', 'transformers', 'pandas'} & set(sys.modules);"
        "print(json.dumps([len(graph.nodes), sorted(heavy)]))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    nodes, heavy = json.loads(out.stdout)
    assert nodes > 96 * 15
    assert heavy == []
