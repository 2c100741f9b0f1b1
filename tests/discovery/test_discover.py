"""``discover`` on single ops: what is found, what is refused and why, and how far the search goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import autosbp
from autosbp.discovery import Discovery, discover
from autosbp.discovery._call import Tensor as CallTensor
from autosbp.discovery._call import make_call
from autosbp.discovery._prover import Prover
from autosbp.discovery._samples import samples
from autosbp.discovery._search import search
from tests.discovery import library

Tensor = torch.Tensor


def layouts(found: Discovery) -> set[str]:
    return {f"{' '.join(map(str, option.ins))} -> {' '.join(map(str, option.outs))}" for option in found.options}


def numbers(*shape: int) -> Tensor:
    return torch.zeros(shape)


OFFSETS = torch.tensor([0, 4, 4, 9, 20, 24])
FOUND: dict[str, tuple[Callable[..., Any], tuple[Any, ...], set[str]]] = {
    "matrix product (OneFlow Table 1)": (
        torch.mm, (numbers(6, 12), numbers(12, 18)),
        {"S0 B -> S0", "B S1 -> S1", "S1 S0 -> P", "P B -> P", "B P -> P"},
    ),
    "linear layer with a bias": (
        torch.nn.functional.linear, (numbers(6, 12), numbers(18, 12), numbers(18)),
        {"S0 B B -> S0", "B S0 S0 -> S1", "S1 S1 P -> P", "P B P -> P", "B P P -> P"},
    ),
    "gated layer in one op": (
        library.swiglu, (numbers(6, 12), numbers(18, 12), numbers(18, 12)),
        {"S0 B B -> S0", "B S0 S0 -> S1", "B B P -> P"},
    ),
    "rotary positions of packed heads": (
        library.rotary, (numbers(6, 12, 36), numbers(12, 3), numbers(12, 3), 6),
        {"S0 B B -> S0", "S1 S0 S0 -> S1", "S2 B B -> S2", "P B B -> P", "B P P -> P"},
    ),
    "shape given as an argument": (
        library.tile, (numbers(6, 12), [6, 18, 12]), {"S0 -> S0", "S1 -> S2", "B -> S1", "P -> P"}
    ),
    "matrix product of experts with offsets": (
        library.grouped, (numbers(24, 12), numbers(6, 12, 18), OFFSETS),
        {"S1 S1 B -> P", "B S2 B -> S1", "P B B -> P", "B P B -> P"},
    ),
    "columns picked by an index": (lambda x, at: x[:, at], (numbers(6, 12), torch.tensor([3, 0, 11, 7, 2, 5])),
                                   {"S0 B -> S0", "B S0 -> S1", "P B -> P"}),
    "largest index": (lambda at: at.max(), (torch.arange(12),), {"S0 -> Pmax"}),
    "how often each index occurs": (lambda at: torch.bincount(at, minlength=6), (torch.arange(12) % 6,), {"S0 -> P"}),
    "comparison with a number": (lambda x: x > 0.5, (numbers(6, 12),), {"S0 -> S0", "S1 -> S1"}),
    "two outputs": (lambda x: (x.sum(0), x.exp()), (numbers(6, 12),), {"S0 -> P S0", "S1 -> S0 S1"}),
    "every other element": (lambda x: x[::2], (numbers(12, 6),), {"S0 -> S0", "S1 -> S1", "P -> P"}),
    "numbers between 0 and 1 only": (torch.logit, (numbers(6),), {"S0 -> S0"}),
    "a whole set of tensors": (lambda *parts: torch.cat(parts, 1), tuple(numbers(6, 6 * at) for at in (1, 2, 3, 1, 2, 3)),
                               {"S0 S0 S0 S0 S0 S0 -> S0", "P P P P P P -> P"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_layouts_of_an_op_are_found_by_running_it(name: str) -> None:
    op, args, expected = FOUND[name]
    found = discover(op, args)
    assert found.complete
    assert found.reason == ""
    assert layouts(found) == expected


NONE: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "sorted and mixed": (library.sort_mix, (numbers(6, 12),), "no layout that splits its work"),
    "random": (library.jitter, (numbers(6, 12),), "draws random numbers"),
    "the shape depends on the data": (torch.nonzero, (numbers(6),), "no layout that splits its work"),
    "never runs": (lambda x: x.view(-1, 7), (numbers(6),), "fails on random inputs: RuntimeError"),
    "not finite": (lambda x: x / 0, (numbers(6),), "is not finite"),
    "not a tensor": (lambda x: x.tolist(), (numbers(6),), "fails on random inputs: TypeError"),
    "a constant tells nothing of sums": (lambda x: torch.isfinite(x).all(), (numbers(6),), "no layout"),
    "backward is wrong in parts": (lambda x: x / x.detach().norm(), (numbers(6, 12),), "no layout"),
    "odd extents": (torch.exp, (numbers(5, 7),), "no layout that splits its work"),
}


@pytest.mark.parametrize("name", NONE)
def test_an_op_without_layouts_says_why(name: str) -> None:
    op, args, reason = NONE[name]
    found = discover(op, args)
    assert found.options == ()
    assert reason in found.reason
    assert found.random == (name == "random")


def test_the_search_stops_when_the_op_has_run_often_enough() -> None:
    args = (numbers(6, 12), numbers(18, 12), numbers(18))
    everything = discover(torch.nn.functional.linear, args)
    few = discover(torch.nn.functional.linear, args, max_runs=120)
    assert not few.complete
    assert few.num_runs <= 120
    assert few.reason == f"has untested layouts after {few.num_runs} runs"
    assert layouts(few) < layouts(everything)


def test_the_search_stops_when_the_op_has_run_long_enough() -> None:
    call = make_call(
        torch.mm, (numbers(6, 12), numbers(12, 18)), {}, lambda arg: CallTensor(tuple(arg.shape), arg.dtype, True)
    )
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 1.0
        return now_s

    found = search(Prover(call, samples(call), clock=clock), max_s=60.0)
    assert not found.complete
    assert 50 <= found.num_runs < 60
    assert layouts(found) < layouts(discover(torch.mm, (numbers(6, 12), numbers(12, 18))))


def test_coincidences_of_one_sample_do_not_pass() -> None:
    """Of whole numbers, both parts often hold the least one: they are then equal, and are no copies."""
    assert layouts(discover(lambda at: at.min(), (torch.arange(36) % 9,))) == {"S0 -> Pmin"}
    symmetric = discover(lambda x: x + x.flip(0), (numbers(6, 12),))
    assert layouts(symmetric) == {"S1 -> S1", "P -> P"}


def test_layouts_that_two_axes_cannot_both_take_are_dropped() -> None:
    """Parts of 6 and of 4 rows are right here; those of 3 that two axes of 2 devices make are not."""

    def fragile(x: Tensor) -> Tensor:
        return x if x.shape[0] >= 4 else x.flip(0)

    assert layouts(discover(fragile, (numbers(12, 6),))) == {"S1 -> S1", "P -> P"}


def test_discover_is_offered_by_the_package() -> None:
    assert autosbp.discover is discover
    assert discover(torch.exp, (numbers(6),)).sharding.extra == discover(torch.exp, (numbers(6),)).options
