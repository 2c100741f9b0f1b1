"""Data sets of the trainer: what a sample is, by the model's inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from autosbp.api import capture_module
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.training.data import load_dataset
from examples import train_gpt2
from tests.training.user_model import LENGTH, LanguageModel, Sentences, example


class Classifier(nn.Module):
    """Of images in some classes."""

    def __init__(self, channels: int = 3, classes: int = 4) -> None:
        super().__init__()
        self.out = nn.Linear(channels * 6 * 8, classes)

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.out(pixels.flatten(1)), labels)


@pytest.fixture(scope="module")
def language() -> LogicalGraph:
    return capture_module(LanguageModel(), example(), name="language-model", check=False)


def classifier(channels: int, classes: int = 4) -> LogicalGraph:
    inputs = {"pixels": torch.zeros(2, channels, 6, 8), "labels": torch.zeros(2, dtype=torch.long)}
    return capture_module(Classifier(channels, classes), inputs, name="classifier", check=False)


def test_bytes_of_a_text_are_its_tokens_and_labels_the_ones_that_follow(language: LogicalGraph, tmp_path: Path) -> None:
    text = bytes(range(50)) + b"\n" * 7
    (tmp_path / "text.txt").write_bytes(text)
    dataset = load_dataset([str(tmp_path / "text.txt")], language)
    assert len(dataset) == 56 // LENGTH
    for at in range(len(dataset)):
        sample = dataset[at]
        assert sample["tokens"].tolist() == list(text[at * LENGTH : (at + 1) * LENGTH])
        assert sample["labels"].tolist() == list(text[at * LENGTH + 1 : (at + 1) * LENGTH + 1])
    assert sample["tokens"].dtype == torch.int64


def test_models_of_transformers_get_the_tokens_as_labels(tmp_path: Path) -> None:
    module, inputs = train_gpt2.factory()
    graph = capture_module(module, inputs, name="gpt2", check=False)
    (tmp_path / "text.txt").write_bytes(b"x" * 63 + b"y")
    (sample,) = load_dataset([str(tmp_path / "text.txt")], graph, module)
    assert sample["labels"].tolist() == sample["input_ids"].tolist() == [ord("x")] * 63 + [ord("y")]


def test_a_tokenizer_splits_the_text_once(language: LogicalGraph, tmp_path: Path) -> None:
    words = [f"w{at}" for at in range(60)]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text(" ".join(words[:30]) + "\n" + " ".join(words[30:]) + "\n")
    arguments = {"tokenizer": tmp_path / "tokenizer.json", "cache": tmp_path / "run"}
    dataset = load_dataset([str(tmp_path / "text.txt")], language, **arguments)
    assert [token for at in range(len(dataset)) for token in dataset[at]["tokens"].tolist()] == list(range(48))
    (written,) = (tmp_path / "run").iterdir()
    before = written.stat().st_mtime_ns
    load_dataset([str(tmp_path / "text.txt")], language, **arguments)
    assert written.stat().st_mtime_ns == before
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"expected a tokenizer\.json"):
        load_dataset([str(tmp_path / "text.txt")], language, **arguments)


def test_token_files_are_mapped_and_several_sources_follow_each_other(language: LogicalGraph, tmp_path: Path) -> None:
    np.arange(LENGTH + 1, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    np.save(tmp_path / "tokens.npy", np.arange(LENGTH + 1)[::-1] + 1)
    dataset = load_dataset([str(tmp_path / "tokens.bin"), str(tmp_path / "tokens.npy")], language)
    assert [dataset[at]["tokens"][0].item() for at in range(len(dataset))] == [0, LENGTH + 1]
    np.save(tmp_path / "tokens.npy", np.zeros((3, 3)))
    with pytest.raises(InputError, match="expected integers in one dim"):
        load_dataset([str(tmp_path / "tokens.npy")], language)


def test_a_token_outside_of_the_vocabulary_is_named(language: LogicalGraph, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("~" * 40)
    with pytest.raises(InputError, match="token 126 .* vocabulary has 64 tokens"):
        load_dataset([str(tmp_path / "text.txt")], language)[0]


def test_images_of_folders_fit_the_model(tmp_path: Path) -> None:
    for name, colour in (("cats", (255, 0, 0)), ("dogs", (0, 0, 255))):
        (tmp_path / name).mkdir()
        for at in range(2):
            Image.new("RGB", (20 + at, 9), colour).save(tmp_path / name / f"{at}.png")
    dataset = load_dataset([str(tmp_path)], classifier(3))
    assert [int(dataset[at]["labels"]) for at in range(len(dataset))] == [0, 0, 1, 1]
    pixels = dataset[3]["pixels"]
    assert pixels.shape == (3, 6, 8) and pixels.dtype == torch.float32
    torch.testing.assert_close(pixels[2], torch.full((6, 8), (1 - 0.406) / 0.225))
    grey = load_dataset([str(tmp_path)], classifier(1))[0]["pixels"]
    assert grey.shape == (1, 6, 8) and 0 < float(grey.min()) <= float(grey.max()) < 1
    with pytest.raises(InputError, match="the model has 1 classes"):
        load_dataset([str(tmp_path)], classifier(3, 1))


def sentences() -> Dataset[dict[str, torch.Tensor]]:
    return Sentences(12)


def test_an_own_data_set_is_called_by_its_name(language: LogicalGraph) -> None:
    dataset = load_dataset([f"{__name__}:sentences"], language)
    assert len(dataset) == 12 and set(dataset[0]) == {"tokens", "labels"}
    with pytest.raises(InputError, match="returns a data set"):
        load_dataset(["tests.training.user_model:LanguageModel"], language)


def test_data_that_the_model_does_not_take_is_refused(language: LogicalGraph, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("text")
    with pytest.raises(InputError, match="expected more than 16 tokens"):
        load_dataset([str(tmp_path / "text.txt")], language)
    with pytest.raises(InputError, match=r"give package\.module:dataset"):
        load_dataset([str(tmp_path / "text.txt")], classifier(3))
    with pytest.raises(InputError, match="models of images"):
        load_dataset([str(tmp_path)], language)
    with pytest.raises(InputError, match="expected a file, a folder of images"):
        load_dataset([str(tmp_path / "none")], language)
