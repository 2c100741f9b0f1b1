"""Ops that end the process which tries them, as native code does that trusts its sizes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import nn

from autosbp.discovery import _child_process, _graph_rules, discover_rules
from autosbp.discovery._call import Call
from autosbp.discovery._child_process import run_trials
from autosbp.discovery._prover import Prover
from autosbp.graph.capture import capture
from autosbp.graph.discovered_rules import DiscoveredRule

pytestmark = pytest.mark.integration


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], size: int, num_layers: int) -> None:
        super().__init__()
        self.layers = kind(size, 2 * size, num_layers, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)[0]
        return out.square().mean()


def op(value: int, *, limit: int = 0) -> tuple[torch.Tensor, ...]:
    """Ends its process for values below a limit."""
    if value < limit:
        os.kill(os.getpid(), signal.SIGSEGV)
    return (torch.zeros(()),)


def rule_of(values: Sequence[int], limit: int, text: str = "") -> DiscoveredRule:
    """Says which values the op took, and the process."""
    taken = []
    for value in values:
        with suppress(RuntimeError):
            Call(op, (value,), {"limit": limit}, ()).run(())
            taken.append(value)
    return DiscoveredRule((), f"{text or taken} in {os.getpid()}", random=True)


def test_harmless_ops_share_one_child() -> None:
    first, *others = (rule.reason for rule in run_trials([partial(rule_of, [1], 0)] * 3))
    assert others == [first] * 2 and first.startswith("[1]") and not first.endswith(f" {os.getpid()}")


def test_runs_that_end_a_process_are_refused_alone() -> None:
    harmless, deadly = partial(rule_of, [1], 0), partial(rule_of, [5, 1, 7, 2, 9], 3)
    before, died, after = (rule.reason for rule in run_trials([harmless, deadly, harmless]))
    assert died.startswith("[5, 7, 9] in ")
    assert before.startswith("[1] in ") and after.startswith("[1] in ")
    assert after.split()[-1] == died.split()[-1] != before.split()[-1]


def test_an_op_that_always_ends_its_process_stays_whole_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_child_process, "MAX_DEATHS", 3)
    found = list(run_trials([partial(rule_of, range(9), 9), partial(rule_of, range(3), 3), partial(rule_of, [1], 0)]))
    assert found[0] == DiscoveredRule((), "crashes the process that runs it (SIGSEGV)")
    assert found[1].reason.startswith("[] in ") and found[2].reason.startswith("[1] in ")


def test_an_op_that_hangs_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_child_process, "SILENCE_S", 0.3)

    def hangs() -> DiscoveredRule:
        time.sleep(60.0)
        raise AssertionError

    assert [rule.reason for rule in run_trials([hangs])] == ["crashes the process that runs it (no answer in 0.3 s)"]


def test_errors_of_the_child_process_are_raised_in_the_parent() -> None:
    def wrong() -> DiscoveredRule:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        list(run_trials([partial(rule_of, [1], 0), wrong]))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_the_batch_of_a_recurrent_layer_is_split(kind: type[nn.RNNBase]) -> None:
    graph = discover_rules(capture(Recurrent(kind, 8, 1), {"x": torch.zeros(4, 5, 8)}, name="recurrent"))
    (rule,) = graph.rules.values()
    assert [option.ins[:2] for option in rule.options] == [("S0", "S1")]


def test_invalid_shapes_are_rejected_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """ATen's kernel for LSTMs reads the states of layers that it was not given."""
    monkeypatch.setattr(_child_process, "MAX_DEATHS", 1)
    weights, lstm = [torch.zeros(32, 8).double()] * 4, torch.ops.aten.lstm.input

    def states_of_layers(*counts: int) -> DiscoveredRule:
        taken = []
        for count in counts:
            states = [torch.zeros(layers, 4, 8).double() for layers in (2, count)]
            arguments = torch.zeros(4, 5, 8).double(), states, weights, False, 2, 0.0, False, False, True
            with suppress(RuntimeError):
                Call(lstm, arguments, {}, ()).run(())
                taken.append(count)
        return DiscoveredRule((), f"{taken}", random=True)

    assert [rule.reason for rule in run_trials([partial(states_of_layers, 2, 1, 2, 1, 1, 2)])] == ["[2, 2, 2]"]


def test_layers_of_layers_are_split_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_graph_rules, "Prover", partial(Prover, runs_left=3000))
    graph = discover_rules(capture(Recurrent(nn.LSTM, 128, 2), {"x": torch.zeros(4, 5, 128)}, name="recurrent"))
    (rule,) = graph.rules.values()
    assert [option.ins for option in rule.options] == [("S0", "S1", "S1", *["B"] * 8)]
