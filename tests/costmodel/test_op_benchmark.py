"""Ops run from their keys, and only ops that a key may name."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import torch

from autosbp.api import PlanOptions, load_cluster, op_keys
from autosbp.costmodel.op_benchmark import call_seconds, prepare_op
from autosbp.errors import InputError
from autosbp.graph_sources import load_model
from autosbp.utils.json_io import canonical

pytestmark = pytest.mark.integration


def key(op: str, *args: Any, **kwargs: Any) -> str:
    return canonical({"op": op, "args": list(args), "kwargs": kwargs}).decode()


def tensor(*shape: int, d: str = "float32", **more: Any) -> dict[str, Any]:
    return {"t": list(shape), "d": d, **more}


def test_linear_runs_forward_and_backward_repeatedly() -> None:
    text = key("aten.linear.default", tensor(4, 8, g=True), tensor(16, 8, g=True), None)
    forward, backward = prepare_op(text)
    for _ in range(2):
        output, gradients = forward(), backward()
    assert isinstance(output, torch.Tensor) and output.shape == (4, 16)
    assert isinstance(gradients, tuple) and [item.shape for item in gradients] == [(4, 8), (16, 8)]


def test_same_key_gives_the_same_values() -> None:
    text = key("aten.mul.Tensor", tensor(8), 2.0)
    first, second = prepare_op(text)[0](), prepare_op(text)[0]()
    assert isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and torch.equal(first, second)


@pytest.mark.parametrize(
    "text",
    [
        key("aten.embedding.default", tensor(10, 4, g=True), tensor(3, d="int64", hi=10)),
        key("aten.cat.default", [tensor(2, 3, g=True), tensor(2, 3)], 1),
        key("aten.split.Tensor", tensor(4, 4, g=True), 2, 0),
        key("aten._to_copy.default", tensor(4), dtype={"dtype": "bfloat16"}),
        key("aten.sum.dim_IntList", tensor(4, 4, d="float64", g=True), [0], True),
        key("aten.where.self", tensor(4, d="bool"), tensor(4), tensor(4, g=True)),
        key("aten.topk.default", tensor(8, g=True), 2),
        key("aten.mul.Tensor", tensor(0, 4, g=True), tensor(4)),
        key("aten.scaled_dot_product_attention.default", *[tensor(1, 2, 4, 8, g=True)] * 3, is_causal=True),
    ],
    ids=lambda text: text.split('"op":"')[1].split('"')[0],
)
def test_generic_ops_run(text: str) -> None:
    forward, backward = prepare_op(text)
    forward()
    backward()


def test_an_op_of_our_own_namespace_runs() -> None:
    experts = [tensor(2, 8, 4, g=True), tensor(2, 8, 4, g=True), tensor(2, 4, 8, g=True)]
    tokens = [tensor(6, 4, g=True), tensor(6, 1, d="int64", hi=2), tensor(6, 1, g=True)]
    output = prepare_op(key("autosbp.experts.default", *tokens, *experts, "silu"))[1]()
    assert isinstance(output, tuple) and [tuple(each.shape) for each in output][0] == (6, 4)


def test_backward_without_gradients_does_nothing() -> None:
    assert prepare_op(key("aten.relu.default", tensor(4)))[1]() is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "valid JSON"),
        ("[]", "mapping"),
        (key("os.system.default", "true"), "namespace of aten, autosbp"),
        (key("aten.linear"), "NAMESPACE.NAME.OVERLOAD"),
        (key("aten.no_such_op.default"), "argument-checking ops"),
        (key("aten.__init__.__globals__"), "argument-checking ops"),
        (key("aten.add.no_such_overload", tensor(1), tensor(1)), "argument-checking ops"),
        (key("autosbp.no_such_op.default"), "autosbp.experts.default"),
        (key("aten.from_file.default", "some-file", True, 4), "argument-checking ops"),
        (key("aten.save.default", tensor(1), "some-file"), "argument-checking ops"),
        (key("aten.mm.default", tensor(2, 3), tensor(2, 3)), "valid arguments of the op"),
        (key("aten.mm.default", tensor(2, 3)), "valid arguments of the op"),
        (key("aten.relu.default", tensor(-1)), "at least 0"),
        (key("aten.relu.default", tensor(2**50)), "fits in memory"),
        (key("aten.relu.default", tensor(1, d="float128")), "float32"),
        (key("aten.relu.default", tensor(1, d="int64", g=True)), "only floating-point"),
        (key("aten.relu.default", tensor(1, device="cuda")), "known fields"),
    ],
)
def test_a_bad_key_is_an_input_error(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        prepare_op(text)


def test_calls_take_turns_on_copies_of_the_inputs_that_give_the_same() -> None:
    text = key("aten.mul.Tensor", tensor(1024, g=True), tensor(1024, g=True))
    forward, backward = prepare_op(text, spread_bytes=5 * 3 * 4096)
    outputs = [forward() for _ in range(12)]
    assert len({id(output.grad_fn.next_functions[0][0]) for output in outputs}) == 6  # type: ignore[attr-defined]
    assert all(torch.equal(output, outputs[0]) for output in outputs)  # type: ignore[arg-type]
    assert all(torch.equal(one, two) for one, two in zip(backward(), backward(), strict=True))  # type: ignore[call-overload]


def test_calls_on_a_cpu_are_timed_all_together() -> None:
    assert 0.03 <= call_seconds(lambda: time.sleep(0.01), 3, "cpu") < 0.3


class Gpu:
    """A stand-in for the device: each call queues 2 ms of work, and an event is reached when what is before it is done. The
    first ``late`` times the host has asked for all calls only after the device had nothing left to do before them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late: int = 0) -> None:
        self.queued_ms, self.late = 7.0, late
        self.reached: list[float] = []
        self.slept: list[int] = []
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: Event(self))
        monkeypatch.setattr(torch.cuda, "_sleep", self.slept.append)

    def call(self) -> None:
        self.queued_ms += 2.0


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at_ms = gpu, -1.0

    def record(self) -> None:
        self.at_ms = self.gpu.queued_ms

    def query(self) -> bool:
        self.gpu.late -= 1
        return self.gpu.late >= 0

    def synchronize(self) -> None:
        self.gpu.reached.append(self.at_ms)

    def elapsed_time(self, end: Event) -> float:
        return end.at_ms - self.at_ms


def test_calls_on_a_gpu_are_timed_by_its_own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    assert call_seconds(gpu.call, 5, "cuda:1") == pytest.approx(10e-3)
    assert gpu.reached == [17.0]  # once, behind all calls
    assert len(gpu.slept) == 1 and gpu.slept[0] > 0


def test_calls_that_a_gpu_would_have_waited_for_are_timed_again_behind_more_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Gpu(monkeypatch, late=1)

    def slow() -> None:
        time.sleep(2e-3)
        gpu.call()

    assert call_seconds(slow, 3, "cuda") == pytest.approx(6e-3)
    assert len(gpu.slept) == 2 and gpu.slept[1] > gpu.slept[0]


def test_synchronizing_gpu_calls_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch, late=100)
    assert call_seconds(gpu.call, 3, "cuda") == pytest.approx(6e-3)
    assert len(gpu.slept) == 3


def test_no_more_calls_are_queued_than_a_gpu_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    assert call_seconds(gpu.call, 150, "cuda") == pytest.approx(300e-3)
    assert len(gpu.reached) == 3


@pytest.mark.parametrize("name", ["bert-large", "t5-large", "moe", "resnet50"])
def test_timed_indices_stay_within_the_local_shape(name: str) -> None:
    # On a GPU an index out of bounds ends all that comes after it: BERT's sentence labels are 0 or 1, its tokens below 30522.
    picked = 0
    for key in op_keys(load_model(f"zoo:{name}"), load_cluster("local:2x2"), PlanOptions(global_batch=8)):
        document = json.loads(key)
        args = document["args"]
        if document["op"] == "aten.embedding.default":
            limit, index = args[0]["t"][0], args[1]
        elif document["op"] == "aten.gather.default":
            limit, index = args[0]["t"][args[1]], args[2]
        else:
            continue
        assert index["hi"] <= limit, key
        picked += 1
    assert picked
