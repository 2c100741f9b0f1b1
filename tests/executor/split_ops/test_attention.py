"""Attention over split keys and queries: masks that hide everything, precision, memory, blocks of causal attention."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from autosbp.executor.runtime import Runtime
from autosbp.executor.split_ops import _attention_blocks as blocks
from autosbp.executor.split_ops._attention import attention_split
from autosbp.executor.split_ops._attention_kernels import FLASH_CUDA
from autosbp.plan.plan import Signature
from autosbp.program.chosen_options import checked_choices
from autosbp.sbp.layout import S
from autosbp.sbp.rules import node_options
from autosbp.testing.virtual import VirtualRanks, plain_mesh
from autosbp.testing.virtual_cases import Case, of, op_case, x
from autosbp.testing.virtual_ops import check_layouts

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
OP = "aten.scaled_dot_product_attention.default"


def over_split_keys(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, size: int
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Output and gradients of query, key, value when ``size`` ranks hold the keys; the gradient of the output is 1."""

    def work(runtime: Runtime) -> tuple[torch.Tensor, list[torch.Tensor]]:
        keys, values = (each.chunk(size, -2)[runtime.rank].clone().requires_grad_() for each in (key, value))
        own = query.clone().requires_grad_()
        part = None if mask is None else mask.chunk(size, -1)[runtime.rank]
        out = attention_split(own, keys, values, part, None, None, (0,))
        return out.detach(), list(torch.autograd.grad(out.sum(), (own, keys, values)))

    found = VirtualRanks(plain_mesh(size)).run(work)
    grads = [grads for _, grads in found]
    summed = torch.stack([each[0] for each in grads]).sum(0)
    joined = [torch.cat([each[at] for each in grads], -2) for at in (1, 2)]
    return torch.stack([out for out, _ in found]).sum(0), [summed, *joined]


def whole(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    leaves = [each.clone().requires_grad_() for each in (query, key, value)]
    out = scaled_dot_product_attention(*leaves, mask)
    return out.detach(), list(torch.autograd.grad(out.sum(), leaves))


def hidden_rows() -> torch.Tensor:
    """Query 0 sees nothing, query 1 only the first half of the keys, query 2 only the last key, query 3 all."""
    seen = torch.ones(4, 8, dtype=torch.bool)
    seen[0], seen[1, 4:], seen[2, :7] = False, False, False
    return seen


@pytest.mark.parametrize("width", [6, 5], ids=["fused kernel", "products"])
@pytest.mark.parametrize("kind", ["bool", "added", "per head"])
def test_masked_queries_are_right_on_some_or_all_ranks(kind: str, width: int) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(2, 3, n, 6, generator=generator, dtype=torch.float64) for n in (4, 8))
    value = torch.randn(2, 3, 8, width, generator=generator, dtype=torch.float64)
    mask = hidden_rows()
    if kind != "bool":
        mask = torch.zeros(4, 8, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    if kind == "per head":
        mask = mask.expand(1, 3, 4, 8)
    for size in (2, 4):
        out, grads = over_split_keys(query, key, value, mask, size)
        wanted, wanted_grads = whole(query, key, value, mask)
        torch.testing.assert_close(out, wanted, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(grads, wanted_grads, rtol=1e-10, atol=1e-12)
        assert bool((out[:, :, 0] == 0).all())


@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_is_as_near_to_the_truth_as_torch_is(device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    exact = [torch.randn(1, 2, 64, 16, generator=generator, dtype=torch.float64) for _ in range(3)]
    halves = [each.to(device, torch.bfloat16) for each in exact]
    wanted, wanted_grads = whole(*[each.double() for each in halves], None)
    results = [over_split_keys(*halves, None, 4), whole(*halves, None)]
    errors = [
        [float((out - wanted).norm()), *(float((a - b).norm()) for a, b in zip(grads, wanted_grads, strict=True))]
        for out, grads in results
    ]
    assert all(split <= 2.5 * torch_own for split, torch_own in zip(*errors, strict=True)), errors


def test_the_kernel_of_gpus_takes_grouped_heads_and_the_log_sum_exp_of_others() -> None:
    query, key = (torch.empty(2, heads, 64, 32, dtype=torch.bfloat16, device="meta") for heads in (8, 2))
    out, total = FLASH_CUDA.forward(query, key, key, None, True, 0.3)
    assert (out.shape, total.shape) == (query.shape, query.shape[:-1])
    *grads, _ = FLASH_CUDA.backward(out, total, total, query, key, key, None, True, 0.3)
    assert [each.shape for each in grads] == [query.shape, key.shape, key.shape]


def test_attention_keeps_no_scores_for_backward() -> None:
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    def work(_: Runtime) -> Any:
        query, key, value = (torch.randn(1, 2, 32, 8, requires_grad=True) for _ in range(3))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return attention_split(query, key, value, None, 0, None, (0,)).sum()

    VirtualRanks(plain_mesh(1)).run(work)
    assert sum(kept.values()) == 4 * 2 * 32 * 8 + 2 * 32  # query, key, value, output; log-sum-exp


def test_products_of_matrices_hold_few_scores_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_SCORES", 48)
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(2, 7, 6, generator=generator, dtype=torch.float64) for _ in range(3))
    sizes = [block.query[1] * block.key[1] for block in blocks.plan_blocks(query, key, 0, fused=False)]
    assert len(sizes) > 3 and max(sizes) * 2 <= 48

    def work(_: Runtime) -> tuple[torch.Tensor, list[torch.Tensor]]:
        leaves = [each.clone().requires_grad_() for each in (query, key, value)]
        out = attention_split(*leaves, None, 0, None, ())
        return out.detach(), list(torch.autograd.grad(out.sum(), leaves))

    ((out, grads),) = VirtualRanks(plain_mesh(1)).run(work)
    leaves = [each.clone().requires_grad_() for each in (query, key, value)]
    wanted = scaled_dot_product_attention(*leaves, is_causal=True)
    torch.testing.assert_close(out, wanted.detach())
    torch.testing.assert_close(grads, list(torch.autograd.grad(wanted.sum(), leaves)))


def test_causal_blocks_cover_exactly_what_is_seen() -> None:
    for ahead, queries, keys in product(range(-6, 7), range(1, 6), range(1, 6)):
        seen = torch.zeros(queries, keys, dtype=torch.int64)
        for block in blocks.causal_blocks(ahead, queries, keys):
            part = torch.ones(block.query[1], block.key[1], dtype=torch.int64)
            rows = seen.narrow(0, *block.query).narrow(1, *block.key)
            rows += part.tril() if block.triangle else part
        wanted = torch.ones(queries, keys, dtype=torch.int64).tril(ahead)
        assert torch.equal(seen, wanted), (ahead, queries, keys)


@pytest.mark.parametrize("case", [
    of(x(2, 2, 12, 4), x(2, 2, 12, 4), x(2, 2, 12, 4), None, 0.0, True),
    of(x(2, 4, 8, 4), x(2, 2, 12, 4), x(2, 2, 12, 4), None, 0.0, True, enable_gqa=True),
    of(x(2, 12, 4), x(2, 12, 4), x(2, 12, 6), None, 0.0, True),
], ids=["fused", "grouped", "products"])  # fmt: skip
def test_causal_queries_and_keys_are_split_on_any_axes(case: Case) -> None:
    graph, node = op_case(OP, case)
    wanted = {name: next(each for each in node_options(graph, node) if each.factor == name) for name in ("q", "k")}
    for names in ("qk", "kq", "qq", "kk"):
        chosen = [wanted[name] for name in names]
        signature = Signature(
            tuple(tuple(sbps) for sbps in zip(*(option.ins for option in chosen), strict=True)),
            tuple(tuple(sbps) for sbps in zip(*(option.outs for option in chosen), strict=True)),
        )
        assert list(checked_choices(graph, node, signature, 2)) == chosen
        check_layouts(graph, node, signature, plain_mesh(2, 2))


def test_grouped_heads_are_split_with_their_keys() -> None:
    grouped = of(x(2, 6, 4, 2), x(2, 2, 6, 2), x(2, 2, 6, 2), enable_gqa=True)
    single = of(x(2, 6, 4, 2), x(2, 1, 6, 2), x(2, 1, 6, 2), enable_gqa=True)
    sizes = []
    for case in (grouped, single):
        graph, node = op_case(OP, case)
        heads = next(option for option in node_options(graph, node) if option.ins[0] == S(1))
        sizes.append((heads.size, str(heads.ins[1])))
    assert sizes == [(2, "S1"), (6, "B")]


def test_dropout_is_not_drawn_by_the_implementation() -> None:
    graph, node = op_case(OP, of(x(2, 6, 4, 2), x(2, 6, 4, 2), x(2, 6, 4, 2), None, 0.5, True))
    assert not any(option.needs_split_impl for option in node_options(graph, node))
