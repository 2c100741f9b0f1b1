from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from autosbp.errors import UnsupportedError
from autosbp.graph.capture import build_on_meta, capture
from autosbp.graph.huggingface import capture_hf_config
from autosbp.graph.ir import LogicalGraph
from autosbp.sbp.rules import check_graph
from autosbp.utils.resource_limits import memory_limit
from autosbp.zoo.models import MLP, VGG
from tests.graph.numerics import Double, assert_same, weights

pytestmark = pytest.mark.integration

GPT2 = {
    "model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 16, "vocab_size": 64,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "dtype": "float64",
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "dtype": "float64",
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16, "vocab_size": 64,
}  # fmt: skip
SMALL_VGG = {"widths": [[4], [8]], "pooled": 2, "hidden": 16, "classes": 8}


def hugging_face(config: dict[str, Any]) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {key: value for key, value in config.items() if key != "model_type"}
    hf_config = AutoConfig.for_model(config["model_type"], **{**fields, "use_cache": False})
    module: nn.Module = AutoModelForCausalLM.from_config(hf_config, dtype=torch.float64)
    return module


def captured(build: Callable[[], nn.Module], **inputs: torch.Tensor) -> LogicalGraph:
    return capture(build_on_meta(build, torch.float64), inputs, name="model")


def tokens(batch: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(0, 64, (batch, 16), generator=generator)
    labels = ids.clone()
    labels[0, :9] = -100
    return {"input_ids": ids, "labels": labels}


def images(batch: int, *sizes: int, classes: int = 8) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    labels = torch.randint(0, classes, (batch,), generator=generator)
    labels[0] = -100
    return {"x": torch.randn(batch, *sizes, generator=generator, dtype=torch.float64), "labels": labels}


@pytest.mark.parametrize("config", [GPT2, LLAMA, {**LLAMA, "num_key_value_heads": 4, "tie_word_embeddings": True}])
def test_a_captured_language_model_gives_the_loss_and_gradients_of_the_original(config: dict[str, Any]) -> None:
    with Double():
        graph = capture_hf_config(config)
        check_graph(graph)
        module = hugging_face(config).train()
        weights(module)
        for batch in (2, 5):
            assert_same(graph, module, tokens(batch))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_captured_vgg_gives_the_loss_and_gradients_of_the_original(dropout: float) -> None:
    build = lambda: VGG(**SMALL_VGG, dropout=dropout)  # noqa: E731
    graph = captured(build, **images(3, 3, 16, 16))
    check_graph(graph)
    module = build().double().train()
    weights(module)
    for batch in (2, 5):
        assert_same(graph, module, images(batch, 3, 16, 16))


def test_a_captured_mlp_gives_the_loss_and_gradients_of_the_original() -> None:
    graph = captured(lambda: MLP([12, 16, 8]), **images(3, 12))
    check_graph(graph)
    module = MLP([12, 16, 8]).double()
    weights(module)
    for batch in (2, 7):
        assert_same(graph, module, images(batch, 12))


class Convolutions(nn.Module):
    """Padding given as words, dilation, groups and a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Conv2d(3, 8, 3, padding="same", dilation=2)
        self.valid = nn.Conv2d(8, 8, 3, padding="valid", groups=4, bias=False)
        self.stride = nn.Conv2d(8, 4, 3, stride=2, padding=1)
        self.pools = nn.Sequential(nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(2, padding=1))
        self.head = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.pools(self.stride(self.valid(self.same(x)).relu()))
        return (functional.cross_entropy(self.head(x.flatten(1)), labels),)


class Segmentation(nn.Module):
    """Classes in dim 1 of a cross-entropy over every pixel, through a split, a transpose and a mask attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 16)
        self.mask = torch.ones(4, 4, dtype=torch.float64).tril()
        self.register_buffer("scale", torch.full((1,), 0.5, dtype=torch.float64))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, two = self.head(x).split(8, dim=-1)
        scores = self.mask @ (one.transpose(1, 2) + two.transpose(1, 2)).transpose(1, 2) * self.scale
        loss = functional.cross_entropy(scores.transpose(1, 2), labels[:, None].expand(-1, 4))
        weights = torch.arange(4) * torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
        return (loss + scores.mean() + (one.mean(dim=-1) * weights * torch.tensor(0.5)).sum(),)


@pytest.mark.parametrize(("build", "sizes"), [(Convolutions, (3, 12, 12)), (Segmentation, (4, 6))])
def test_other_modules_give_the_loss_and_gradients_of_the_original(
    build: Callable[[], nn.Module], sizes: tuple[int, ...]
) -> None:
    module = build().double()
    weights(module)
    graph = capture(module, images(3, *sizes), name="model")
    check_graph(graph)
    for batch in (2, 5):
        assert_same(graph, module, images(batch, *sizes))


def test_capture_leaves_the_module_as_it_was() -> None:
    module = Segmentation().double()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    capture(module, images(2, 4, 6), name="model")
    assert all(tensor.device.type == "cpu" for tensor in module.state_dict().values())
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_a_parameter_registered_twice_stays_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = nn.Parameter(torch.ones(6, 6))
            self.one, self.two = weight, weight

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(x @ self.one @ self.two, labels)

    graph = captured(Tied, **images(3, 6))
    assert [leaf.name for leaf in graph.parameters] == ["one"]


def test_a_parameter_of_any_size_is_captured_without_its_memory() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.empty(256, 4096, 7168))  # 28 GiB
            self.down = nn.Linear(7168, 2**19)  # 14 GiB
            nn.init.normal_(self.up)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(torch.einsum("bh,efh->bef", x, self.up).sum((1, 2))[:, None] * x).square().mean()

    with memory_limit(4 * 2**30):
        graph = capture(build_on_meta(Experts), {"x": torch.zeros(4, 7168, device="meta")}, name="experts")
    assert graph.summary()["parameter_bytes"] > 40 * 2**30
    assert graph.provenance["checked"].startswith("not checked against the module: it takes about")


def test_fused_projections_become_one_linear_each() -> None:
    graph = capture_hf_config(GPT2)
    linears = [node for node in graph.nodes if node.op == "aten.linear.default"]
    assert len(linears) == 2 * 6 + 1
    parts = [leaf for leaf in graph.parameters if leaf.source == "transformer.h.0.attn.c_attn.weight"]
    assert [leaf.transforms for leaf in parts] == [(("t",), ("slice", 0, start, start + 32)) for start in (0, 32, 64)]
    assert all(leaf.meta.shape == (32, 32) for leaf in parts)


def test_causal_masks_and_positions_become_attributes_and_constants() -> None:
    graph = capture_hf_config(GPT2)
    attentions = [node for node in graph.nodes if "attention" in node.op]
    assert [node.args[3:6] for node in attentions] == [(None, 0.0, True)] * 2
    assert [constant.meta.shape for constant in graph.constants] == [(1, 16)]


class Unplannable(nn.Module):
    """One forward pass per way of being refused."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.head, self.norm = kind, nn.Linear(6, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.head(x)
        if self.kind == "mutation":
            x.add_(1)
        elif self.kind == "control":
            logits = torch.cond(logits.sum() > 0, torch.sin, torch.cos, (logits,))
        elif self.kind == "data":
            logits = logits[labels > 3]
            labels = labels[labels > 3]
        elif self.kind == "weights":
            return functional.cross_entropy(logits, labels, weight=logits[0])
        elif self.kind == "output":
            return "loss"
        return functional.cross_entropy(logits, labels)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("mutation", "changes input x in place"),
        ("control", "torch.where"),
        ("data", r"test_capture.py.*dense form"),
        ("weights", "nll_loss_forward.*test_capture.py, line"),
        ("output", "loss tensor"),
    ],
)
def test_unsupported_modules_are_refused_with_a_hint(kind: str, says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        captured(lambda: Unplannable(kind), **images(3, 6))


class InPlace(torch.nn.Module):
    """Batch norm, whose running statistics change, and values changed in place through views."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(6)
        self.head = torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x)
        hidden += 1.0
        hidden[:, 1:3] *= 2.0
        hidden[:, 0] = 3.0
        return functional.cross_entropy(self.head(hidden), labels)


def test_ops_in_place_become_functional_and_running_statistics_are_left_alone() -> None:
    inputs = images(6, 6, classes=4)
    graph = captured(InPlace, **inputs)
    assert "norm.running_mean" in graph.provenance["not_updated"]
    module = InPlace().double().train()
    weights(module)
    assert_same(graph, module, inputs)
