"""Ops that end the process which tries them, as native code does that trusts its sizes."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch import nn

from autosbp.discovery import discover_rules
from autosbp.discovery._trials import Attempts, tried
from autosbp.graph.capture import capture
from autosbp.graph.found import FoundRule


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], size: int, num_layers: int) -> None:
        super().__init__()
        self.layers = kind(size, 2 * size, num_layers, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)[0]
        return out.square().mean()


def deadly(attempts: Attempts) -> FoundRule:
    while not attempts.next():
        pass
    if attempts.count < 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    return FoundRule((), f"lived at {attempts.count} in {os.getpid()}")


def always(attempts: Attempts) -> FoundRule:
    while not attempts.next():
        pass
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def harmless(attempts: Attempts) -> FoundRule:
    assert attempts.next() and attempts.count == 1
    return FoundRule((), f"in {os.getpid()}")


def test_harmless_ops_share_one_child() -> None:
    first, *others = (rule.reason for rule in tried([harmless] * 3))
    assert others == [first] * 2 and first != f"in {os.getpid()}"


def test_an_op_that_dies_is_tried_on_and_the_others_are_not_harmed() -> None:
    before, died, dead, after = (rule.reason for rule in tried([harmless, deadly, always, harmless]))
    assert died == dead == "ends the process that tries it (SIGSEGV)"
    assert before.startswith("in ") and after.startswith("in ") and before != after


def test_what_a_trial_raises_is_raised_here() -> None:
    def wrong(_: Attempts) -> FoundRule:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        list(tried([harmless, wrong]))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_the_batch_of_a_recurrent_layer_is_split(kind: type[nn.RNNBase]) -> None:
    graph = discover_rules(capture(Recurrent(kind, 8, 1), {"x": torch.zeros(4, 5, 8)}, name="recurrent"))
    (rule,) = graph.rules.values()
    assert [option.ins[:2] for option in rule.options] == [("S0", "S1")]


def test_layers_whose_trials_crash_are_captured_and_stay_whole() -> None:
    graph = discover_rules(capture(Recurrent(nn.LSTM, 128, 2), {"x": torch.zeros(4, 5, 128)}, name="recurrent"))
    (rule,) = graph.rules.values()
    assert rule.options or "ends the process that tries it" in rule.reason
