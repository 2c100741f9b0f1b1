from __future__ import annotations

from typing import Any

import pytest

from autosbp.errors import InputError
from autosbp.graph.huggingface import capture_hf_config
from tests.graph.test_capture import GPT2, LLAMA


@pytest.mark.parametrize(
    ("config", "seq_len", "field"),
    [
        ({}, None, "config.model_type"),
        ({"model_type": 7}, None, "config.model_type"),
        ({"model_type": "no-such-model"}, None, "config.model_type"),
        ({"model_type": "encodec"}, None, "config.model_type"),
        ({**GPT2, "architectures": "GPT2LMHeadModel"}, None, "config.architectures"),
        ({**LLAMA, "hidden_size": "wide"}, None, "config"),
        ({**GPT2, "n_embd": 30}, None, "config"),
        ({**GPT2, "vocab_size": -3}, None, "config"),
        ({**GPT2, "dtype": "int8"}, None, "config.dtype"),
        (GPT2, 1, "seq_len"),
        (GPT2, 17, "seq_len"),
        (GPT2, "8", "seq_len"),
    ],
)
def test_a_bad_config_is_refused_by_field(config: dict[str, Any], seq_len: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        capture_hf_config(config, seq_len)
    assert caught.value.field == field


VIT = {
    "model_type": "vit", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "image_size": 16, "patch_size": 8, "num_labels": 4,
}  # fmt: skip


def test_sizes_of_another_kind_of_model_are_refused_by_name() -> None:
    for config, sizes, field in ((GPT2, {"image_size": 8}, "image_size"), (VIT, {"seq_len": 8}, "seq_len")):
        with pytest.raises(InputError, match="takes none") as caught:
            capture_hf_config(config, **sizes)
        assert caught.value.field == field
    with pytest.raises(InputError, match="image_size"):
        capture_hf_config(VIT, image_size=0)


def test_a_headless_class_is_trained_with_the_usual_head() -> None:
    graph = capture_hf_config({**VIT, "architectures": ["ViTModel"]})
    assert graph.provenance["source"].endswith("ViTForImageClassification")
    assert {leaf.name: leaf.high for leaf in graph.inputs} == {"pixel_values": None, "labels": 4}


def test_a_config_that_names_remote_code_runs_none() -> None:
    config = {**GPT2, "auto_map": {"AutoModelForCausalLM": "evil--code.Model"}, "architectures": ["Evil"]}
    graph = capture_hf_config(config, 8)
    assert graph.provenance["source"].endswith("GPT2LMHeadModel")
    assert graph.inputs[0].meta.shape == ("batch", 8)
    assert graph.inputs[0].high == 64


def test_the_configs_dtype_is_the_graphs() -> None:
    graph = capture_hf_config({**LLAMA, "dtype": None, "torch_dtype": "bfloat16"}, 8)
    assert {leaf.meta.dtype for leaf in graph.parameters} == {"bfloat16"}
