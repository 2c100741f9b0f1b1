"""Ops run from their keys, and only ops that a key may name."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from autosbp.costmodel.op_bench import call_seconds, run_op
from autosbp.errors import InputError
from autosbp.jsonio import canonical


def key(op: str, *args: Any, **kwargs: Any) -> str:
    return canonical({"op": op, "args": list(args), "kwargs": kwargs}).decode()


def tensor(*shape: int, d: str = "float32", **more: Any) -> dict[str, Any]:
    return {"t": list(shape), "d": d, **more}


def test_linear_runs_forward_and_backward_repeatedly() -> None:
    text = key("aten.linear.default", tensor(4, 8, g=True), tensor(16, 8, g=True), None)
    forward, backward = run_op(text)
    for _ in range(2):
        output, gradients = forward(), backward()
    assert isinstance(output, torch.Tensor) and output.shape == (4, 16)
    assert isinstance(gradients, tuple) and [item.shape for item in gradients] == [(4, 8), (16, 8)]


def test_same_key_gives_the_same_values() -> None:
    text = key("aten.mul.Tensor", tensor(8), 2.0)
    first, second = run_op(text)[0](), run_op(text)[0]()
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
    forward, backward = run_op(text)
    forward()
    backward()


def test_an_op_of_our_own_namespace_runs() -> None:
    library = torch.library.Library("autosbp", "FRAGMENT")
    library.define("bench_double(Tensor x) -> Tensor")
    library.impl("bench_double", lambda x: x * 2, "CompositeImplicitAutograd")
    output = run_op(key("autosbp.bench_double.default", tensor(3, g=True)))[1]()
    assert isinstance(output, tuple) and torch.equal(output[0], torch.full((3,), 2.0))


def test_backward_without_gradients_does_nothing() -> None:
    assert run_op(key("aten.relu.default", tensor(4)))[1]() is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "valid JSON"),
        ("[]", "mapping"),
        (key("os.system.default", "true"), "namespace of aten, autosbp"),
        (key("aten.linear"), "NAMESPACE.NAME.OVERLOAD"),
        (key("aten.no_such_op.default"), "this torch has"),
        (key("aten.__init__.__globals__"), "this torch has"),
        (key("aten.add.no_such_overload", tensor(1), tensor(1)), "this torch has"),
        (key("autosbp.no_such_op.default"), "this torch has"),
        (key("aten.from_file.default", "some-file", True, 4), "no files"),
        (key("aten.save.default", tensor(1), "some-file"), "no files"),
        (key("aten.mm.default", tensor(2, 3), tensor(2, 3)), "arguments that the op takes"),
        (key("aten.mm.default", tensor(2, 3)), "arguments that the op takes"),
        (key("aten.relu.default", tensor(-1)), "at least 0"),
        (key("aten.relu.default", tensor(2**50)), "fits in memory"),
        (key("aten.relu.default", tensor(1, d="float128")), "float32"),
        (key("aten.relu.default", tensor(1, d="int64", g=True)), "only floating-point"),
        (key("aten.relu.default", tensor(1, device="cuda")), "known fields"),
    ],
)
def test_a_bad_key_is_an_input_error(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        run_op(text)


def test_calls_take_turns_on_copies_of_the_inputs_that_give_the_same() -> None:
    text = key("aten.mul.Tensor", tensor(1024, g=True), tensor(1024, g=True))
    forward, backward = run_op(text, spread_bytes=5 * 3 * 4096)
    outputs = [forward() for _ in range(12)]
    assert len({id(output.grad_fn.next_functions[0][0]) for output in outputs}) == 6  # type: ignore[attr-defined]
    assert all(torch.equal(output, outputs[0]) for output in outputs)  # type: ignore[arg-type]
    assert all(torch.equal(one, two) for one, two in zip(backward(), backward(), strict=True))  # type: ignore[call-overload]


def test_calls_on_a_cpu_are_timed_all_together() -> None:
    assert 0.03 <= call_seconds(lambda: time.sleep(0.01), 3, "cpu") < 0.3


def test_calls_on_a_gpu_are_timed_by_its_own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the device: each call queues 2 ms of work, and an event is reached when what is before it is done."""
    queued_ms, reached = [0.0], list[str]()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.at_ms = -1.0

        def record(self) -> None:
            self.at_ms = queued_ms[0]

        def synchronize(self) -> None:
            reached.append(f"{self.at_ms:g}")

        def elapsed_time(self, end: Event) -> float:
            return end.at_ms - self.at_ms

    def call() -> None:
        queued_ms[0] += 2.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    queued_ms[0] = 7.0
    assert call_seconds(call, 5, "cuda:1") == pytest.approx(10e-3)
    assert reached == ["17"]  # once, behind all calls
