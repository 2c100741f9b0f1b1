"""Model FLOPs and tokens of a sample."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.model_work import model_work, sequence_length
from autosbp.graph.precision import in_precision
from autosbp.zoo import zoo_graph


def test_a_perceptron_takes_six_flops_per_weight_less_the_input_s_gradient() -> None:
    graph = zoo_graph("mlp-small")
    matrices = [prod(leaf.meta.sizes) for leaf in graph.parameters if len(leaf.meta.sizes) == 2]
    work = model_work(graph.bind(batch=4), 4)
    assert work.flops == {"float32": 6 * sum(matrices) - 2 * matrices[0]}
    assert work.sequence_length is None


def test_a_language_model_takes_six_flops_per_weight_and_token_and_attention() -> None:
    graph = zoo_graph("gpt2")
    length, width, layers, vocabulary = 1024, 768, 12, 50257
    weights = layers * 12 * width**2 + vocabulary * width
    attention = layers * 2 * 2 * length * width / 2  # scores and values of a token, forward, half of them causal
    work = model_work(graph.bind(batch=2), 2)
    assert work.sequence_length == length
    assert sum(work.flops.values()) == pytest.approx(length * (6 * weights + 3 * attention), rel=1e-6)


def test_frozen_weights_take_no_product_for_their_gradient() -> None:
    graph = zoo_graph("gpt2-demo")
    frozen = replace(graph, parameters=tuple(replace(leaf, trained="wte" in leaf.name) for leaf in graph.parameters))
    full, less = (sum(model_work(each.bind(batch=1), 1).flops.values()) for each in (graph, frozen))
    assert 0.5 * full < less < 0.8 * full


def test_flops_count_at_the_peak_of_the_dtype_in_which_products_are_computed() -> None:
    cluster = load_cluster("dgx-a100-80g:1")
    graph = zoo_graph("gpt2")
    full, half = (model_work(in_precision(graph, precision).bind(batch=1), 1) for precision in ("fp32", "bf16-mixed"))
    assert sum(full.flops.values()) == pytest.approx(sum(half.flops.values()))
    assert full.ideal_s(1, cluster) / half.ideal_s(1, cluster) == pytest.approx(312 / 19.5)
    assert full.ideal_s(1, cluster) / full.ideal_s(1, cluster.in_precision("tf32")) == pytest.approx(156 / 19.5)


@pytest.mark.parametrize(
    ("name", "length"), [("bert-large", 512), ("moe", 1024), ("vit-large", None), ("wide-deep", None), ("vgg13", None)]
)
def test_the_sequence_is_the_longest_input_that_indexes_an_embedding(name: str, length: int | None) -> None:
    assert sequence_length(zoo_graph(name)) == length
