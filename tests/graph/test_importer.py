"""What a graph keeps of an exported program: gradients' stops, casts by context, statistics; and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autosbp.errors import GraphError, UnsupportedError
from autosbp.graph.capture import capture
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.to_fx import resolve_op
from tests.graph.numerics import assert_same, weights

pytestmark = pytest.mark.integration


def batch_of(size: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, 6, generator=generator, dtype=torch.float64)
    return {"x": x, "labels": torch.randint(0, 4, (size,), generator=generator)}


class Model(nn.Module):
    """Two layers, a batch norm, a buffer, and a forward pass given as a function of the module."""

    def __init__(self, run: Callable[[Model, Tensor, Tensor], object]) -> None:
        super().__init__()
        self.run, self.norm = run, nn.BatchNorm1d(6)
        self.one, self.two = nn.Linear(6, 4), nn.Linear(6, 4)
        self.register_buffer("seen", torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor, labels: Tensor) -> object:
        return self.run(self, x, labels)


def captured(run: Callable[[Model, Tensor, Tensor], object]) -> LogicalGraph:
    return capture(Model(run).double().train(), batch_of(3), name="model")


def assert_equal(run: Callable[[Model, Tensor, Tensor], object]) -> LogicalGraph:
    """The graph of ``run`` has the module's loss and gradients (of parameters that the loss reads)."""
    module = Model(run).double().train()
    weights(module)
    graph = capture(module, batch_of(3), name="model")
    read = {leaf.source for leaf in graph.parameters}
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in read)
    for size in (2, 5):
        assert_same(graph, module, batch_of(size))
    return graph


def teacher(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    """Targets computed with the trained weights, without gradients."""
    with torch.no_grad():
        target = model.one(x).softmax(-1)
    return ((model.one(x) - target) ** 2).mean() + F.cross_entropy(model.two(x), labels)


def teacher_in_place(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    loss = teacher(model, model.norm(x), labels)
    loss += 1.0
    return loss


def student_within(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    """Gradients turned on again within a region without them."""
    with torch.no_grad():
        target = model.one(x)
        with torch.enable_grad():
            student = model.one(x)
    return F.cross_entropy(student * target, labels)


@pytest.mark.parametrize("run", [teacher, teacher_in_place, student_within])
def test_no_gradient_flows_out_of_a_region_without_gradients(run: Callable[[Model, Tensor, Tensor], object]) -> None:
    graph = assert_equal(run)
    assert sum(node.op == "aten.detach.default" for node in graph.nodes) == 1


def without_casts(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return F.cross_entropy(model.one(x), labels)


def frozen_statistics(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    model.norm.eval()
    return F.cross_entropy(model.one(model.norm(x)), labels)


def recomputed(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    return F.cross_entropy(checkpoint(model.one, x, use_reentrant=False), labels)


def one_element(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model.one(x), labels).reshape(1)


def reads_nothing_of_values(model: Model, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A data-dependent output beside the loss."""
    logits = model.one(x)
    return F.cross_entropy(logits, labels), logits[labels > 1]


@pytest.mark.parametrize("run", [without_casts, frozen_statistics, recomputed, one_element, reads_nothing_of_values])
def test_side_effects_without_influence_on_the_loss_are_captured(
    run: Callable[[Model, Tensor, Tensor], object],
) -> None:
    assert_equal(run)


def test_branches_without_influence_on_the_loss_are_dropped() -> None:
    def run(model: Model, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = model.one(x)
        return F.cross_entropy(logits, labels), torch.cond(logits.sum() > 0, torch.sin, torch.cos, (logits,))

    assert not {"aten.sin.default", "aten.cos.default"} & {node.op for node in captured(run).nodes}


def test_casts_by_context_are_written_out() -> None:
    def run(model: Model, x: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model.one(x.float())
        return F.cross_entropy(logits.float(), labels)

    graph = capture(Model(run).train(), batch_of(3), name="model")
    linear = next(node for node in graph.nodes if node.op == "aten.linear.default")
    assert linear.outputs[0].dtype == "bfloat16"


def changed_input(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    x.mul_(2.0)
    return F.cross_entropy(model.one(x), labels)


def changed_parameter(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        model.one.weight.clamp_(-1.0, 1.0)
    return F.cross_entropy(model.one(x), labels)


def stale_buffer(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        model.seen.mul_(0.9)
    return F.cross_entropy(model.one(x) * model.seen, labels)


def picked_rows(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    return model.one(x)[labels.nonzero().squeeze(-1)].sum()


def branches(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    logits = model.one(x)
    return F.cross_entropy(torch.cond(logits.sum() > 0, torch.sin, torch.cos, (logits,)), labels)


def item(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model.one(x) if labels.sum().item() > 3 else model.two(x), labels)


def vector(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model.one(x), labels, reduction="none")


def whole_numbers(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    return model.one(x).argmax() + labels.sum()


def complex_numbers(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    return torch.fft.fft(model.one(x)).abs().sum() + labels.sum()


def fails(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model.one(x.reshape(-1, 5)), labels)


REFUSED: list[tuple[Callable[[Model, Tensor, Tensor], object], str]] = [
    (changed_input, "changes input x in place; work on a copy"),
    (changed_parameter, r"changes parameter one\.weight"),
    (stale_buffer, "loss depends on buffer seen"),
    (picked_rows, r"values.*dense form"),
    (branches, r"cond cannot be captured.*test_importer\.py.*torch\.where"),
    (item, r"test_importer\.py, line \d+.*dense form"),
    (vector, r"first output must be the loss, a float scalar; got torch.float64 \["),
    (whole_numbers, "a float scalar; got torch.int64"),
    (complex_numbers, r"complex128.*fft.*test_importer\.py"),
    (fails, r"test_importer\.py, line \d+ \(return F\.cross_entropy"),
]


@pytest.mark.parametrize(("run", "says"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_unsupported_code_is_refused_with_line_and_hint(
    run: Callable[[Model, Tensor, Tensor], object], says: str
) -> None:
    with pytest.raises(UnsupportedError, match=says) as caught:
        captured(run)
    assert len(str(caught.value)) < 900


@torch.library.custom_op("graph_tests::scaled", mutates_args=())
def scaled(x: Tensor, by: float) -> Tensor:
    return x * by


scaled.register_fake(lambda x, by: torch.empty_like(x))  # noqa: ARG005
scaled.register_autograd(
    lambda ctx, grad: (grad * ctx.by, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),  # noqa: ARG005
)


def test_custom_ops_are_nodes_by_their_full_name() -> None:
    graph = assert_equal(lambda model, x, labels: F.cross_entropy(scaled(model.one(x), 3.0), labels))
    assert "graph_tests.scaled.default" in {node.op for node in graph.nodes}


@pytest.mark.parametrize(
    ("op", "says"),
    [
        ("unheard_of.op.default", "library unheard_of, after importing it"),
        ("graph_tests.other.default", "library graph_tests"),
        ("aten.no_such_op.default", "argument-checking ops"),
        ("aten.add_.Tensor", "argument-checking ops"),
        ("aten.from_file.default", "argument-checking ops"),
        ("c10d.allreduce_.default", "custom op library"),
        ("os.system", "NAMESPACE.NAME.OVERLOAD"),
        ("aten.__class__.__mro__", "op"),
    ],
)
def test_a_document_reaches_no_op_that_is_not_loaded_or_changes_something(op: str, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        resolve_op(op)
