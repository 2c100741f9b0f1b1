"""Example inputs of Hugging Face classes: names, shapes, bounds, by what the forward pass takes and the config says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autosbp.errors import InputError, UnsupportedError
from autosbp.graph.capture import build_on_meta
from autosbp.graph.huggingface import capture_hf_config
from autosbp.graph.huggingface._classes import training_class
from autosbp.graph.huggingface._config import read_config
from autosbp.graph.huggingface._inputs import ExampleInputs, example_inputs
from autosbp.graph.huggingface._sizes import RequestedSizes, set_image_size

TEXT = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40,
    "max_position_embeddings": 12,
}  # fmt: skip
BERT: dict[str, Any] = {"model_type": "bert", **TEXT}
VIT: dict[str, Any] = {
    "model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "image_size": 16, "patch_size": 8, "num_labels": 5,
}  # fmt: skip
WHISPER: dict[str, Any] = {
    "model_type": "whisper", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_mel_bins": 8, "vocab_size": 40,
    "max_source_positions": 6, "max_target_positions": 10, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 3,
}  # fmt: skip
T5: dict[str, Any] = {
    "model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 40,
    "n_positions": 8,
}  # fmt: skip
SEGFORMER: dict[str, Any] = {
    "model_type": "segformer", "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "decoder_hidden_size": 8,
    "num_attention_heads": [1, 1, 1, 1], "image_size": 32, "num_labels": 5,
}  # fmt: skip
CLIP: dict[str, Any] = {
    "model_type": "clip", "projection_dim": 8, "text_config": TEXT,
    "vision_config": {**{key: VIT[key] for key in VIT if key != "model_type"}},
}  # fmt: skip


def inputs_of(config: dict[str, Any], architecture: str = "", *, full: bool = False, **asked: Any) -> ExampleInputs:
    document = {**config, "architectures": [architecture]} if architecture else config
    hf_config = read_config(document)
    sizes = RequestedSizes(asked.get("seq_len"), asked.get("image_size"))
    set_image_size(hf_config, sizes.image_size)
    chosen = training_class(hf_config, document)
    module = build_on_meta(lambda: chosen.cls._from_config(hf_config))
    return example_inputs(module, hf_config, chosen, sizes, torch.float32, full=full)


TOKENS, SENTENCE = ((4, 12), 40), ((4,), 2)
KINDS: list[tuple[dict[str, Any], str, dict[str, tuple[tuple[int, ...], int | None]]]] = [
    (BERT, "BertForMaskedLM", {"input_ids": TOKENS, "labels": TOKENS}),
    (BERT, "BertForPreTraining", {
        "input_ids": TOKENS, "labels": TOKENS, "next_sentence_label": SENTENCE, "token_type_ids": ((4, 12), 2),
    }),
    (BERT, "BertForNextSentencePrediction", {"input_ids": TOKENS, "labels": SENTENCE, "token_type_ids": ((4, 12), 2)}),
    ({**BERT, "num_labels": 7}, "BertForSequenceClassification", {"input_ids": TOKENS, "labels": ((4,), 7)}),
    ({**BERT, "num_labels": 1}, "BertForSequenceClassification", {"input_ids": TOKENS, "labels": ((4,), None)}),
    ({**BERT, "num_labels": 7, "problem_type": "multi_label_classification"}, "BertForSequenceClassification",
     {"input_ids": TOKENS, "labels": ((4, 7), None)}),
    ({**BERT, "num_labels": 7}, "BertForTokenClassification", {"input_ids": TOKENS, "labels": ((4, 12), 7)}),
    (BERT, "BertForMultipleChoice", {"input_ids": ((4, 2, 12), 40), "labels": SENTENCE}),
    (BERT, "BertForQuestionAnswering", {
        "input_ids": TOKENS, "start_positions": ((4,), 12), "end_positions": ((4,), 12),
    }),
    (T5, "T5ForConditionalGeneration", {"input_ids": ((4, 1024), 40), "labels": ((4, 1024), 40)}),
    (WHISPER, "WhisperForConditionalGeneration", {"input_features": ((4, 8, 12), None), "labels": ((4, 10), 40)}),
    (VIT, "ViTForImageClassification", {"pixel_values": ((4, 3, 16, 16), None), "labels": ((4,), 5)}),
    (SEGFORMER, "SegformerForSemanticSegmentation", {
        "pixel_values": ((4, 3, 32, 32), None), "labels": ((4, 32, 32), 5),
    }),
    (CLIP, "CLIPModel", {"input_ids": TOKENS, "pixel_values": ((4, 3, 16, 16), None)}),
    (CLIP, "", {"input_ids": TOKENS, "pixel_values": ((4, 3, 16, 16), None)}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "architecture", "expected"), KINDS, ids=lambda value: value or "-")
def test_inputs_follow_the_forward_pass_and_the_config(
    config: dict[str, Any], architecture: str, expected: dict[str, tuple[tuple[int, ...], int | None]]
) -> None:
    found = inputs_of(config, architecture)
    assert {name: (tuple(leaf.shape), found.highs.get(name)) for name, leaf in found.tensors.items()} == expected


def test_contrastive_models_request_the_loss() -> None:
    assert inputs_of(CLIP, "CLIPModel").settings == {"return_loss": True}
    assert inputs_of(BERT).settings == {}


def test_additional_inputs_are_given_if_the_minimum_is_insufficient() -> None:
    assert set(inputs_of(T5, full=True).tensors) == {"input_ids", "labels", "decoder_input_ids"}


@pytest.mark.parametrize(
    ("config", "asked", "field", "says"),
    [
        (BERT, {"seq_len": 13}, "seq_len", r"\[2, 12\]"),
        (BERT, {"seq_len": True}, "seq_len", "integer"),
        (BERT, {"image_size": 16}, "image_size", "BertForPreTraining takes none"),
        (VIT, {"seq_len": 8}, "seq_len", "ViTForImageClassification takes none"),
        (VIT, {"image_size": -16}, "image_size", "positive integer"),
        (VIT, {"image_size": 16.0}, "image_size", "positive integer"),
        (WHISPER, {"seq_len": 11}, "seq_len", r"\[2, 10\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(
    config: dict[str, Any], asked: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        inputs_of(config, **asked)
    assert caught.value.field == field


def test_an_image_size_gives_the_model_its_positions() -> None:
    graph = capture_hf_config(VIT, image_size=32)
    shapes = {leaf.name: leaf.meta.shape for leaf in (*graph.parameters, *graph.inputs)}
    assert shapes["pixel_values"] == ("batch", 3, 32, 32)
    assert shapes["vit.embeddings.position_embeddings"] == (1, 17, 16)
    assert graph.provenance["image_size"] == "32x32"


def test_a_model_that_needs_data_without_an_example_is_refused_with_what_it_says() -> None:
    with pytest.raises(UnsupportedError, match="You have to specify bbox"):
        capture_hf_config({"model_type": "bros", **TEXT})


def test_bounds_are_read_off_the_graph() -> None:
    """ELECTRA's labels say of each token whether it was replaced."""
    graph = capture_hf_config({"model_type": "electra", **TEXT, "embedding_size": 16}, 8)
    assert {leaf.name: leaf.high for leaf in graph.inputs} == {"input_ids": 40, "labels": 2}
