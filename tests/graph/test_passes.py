"""Each import pass: what it rewrites, and that the numbers stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from autosbp.errors import UnsupportedError
from autosbp.graph.ir import Constant, DType, Input, LogicalGraph, Node, Parameter, Ref, Sym, TensorMeta
from autosbp.graph.materialise import initial_parameter, make_constant, materialise
from autosbp.graph.passes import canonicalise
from autosbp.graph.passes._cleanup import drop_dead, drop_no_ops, rename
from autosbp.graph.passes._constants import MAX_FOLDED_TEXT, fold_constants, share_constants
from autosbp.graph.passes._fuse import fuse_gelu
from autosbp.graph.passes._linear import unfuse_split_linears, view_addmm_to_linear
from autosbp.graph.passes._losses import explicit_cross_entropy, explicit_means
from autosbp.graph.passes._views import canonical_views

BATCH = Sym("batch")
Shape = tuple[int | str, ...]


def node(name: str, op: str, *args: Any, shape: Shape | list[Shape], dtype: str = "float64", **kwargs: Any) -> Node:
    """A node whose strings that start with ``@`` are references."""
    shapes = shape if isinstance(shape, list) else [shape]
    found = Node(name, f"aten.{op}", args, kwargs, tuple(TensorMeta(each, dtype) for each in shapes))
    return found.map_args(lambda arg: _ref(arg) if isinstance(arg, str) and arg.startswith("@") else arg)


def _ref(text: str) -> Ref:
    name, _, index = text[1:].partition(":")
    return Ref(name, int(index or 0))


def graph_of(
    nodes: Sequence[Node],
    parameters: Mapping[str, Shape],
    inputs: Mapping[str, tuple[Shape, str]],
    constants: Sequence[Constant] = (),
) -> LogicalGraph:
    """A graph whose loss is the sum of its last node."""
    last = nodes[-1]
    total = [] if last.outputs[0].shape == () else [node("total", "sum.default", f"@{last.name}", shape=())]
    return LogicalGraph(
        "test",
        {"batch": 4},
        tuple(Parameter(name, TensorMeta(shape, "float64"), name) for name, shape in parameters.items()),
        tuple(Input(name, TensorMeta(shape, dtype), 5) for name, (shape, dtype) in inputs.items()),
        tuple(constants),
        (*nodes, *total),
        Ref((*nodes, *total)[-1].name),
    )


def run(graph: LogicalGraph, batch: int) -> list[torch.Tensor]:
    """The loss and the gradient of every source tensor."""
    bound = graph.bind(batch=batch)
    generator = torch.Generator().manual_seed(batch)
    sources = {
        name: torch.randn(SOURCES[name], generator=generator, dtype=torch.float64, requires_grad=True)
        for name in sorted({leaf.source for leaf in graph.parameters})
    }
    inputs = [
        torch.randint(0, 5, leaf.meta.sizes, generator=generator)
        if leaf.meta.dtype == "int64"
        else torch.randn(leaf.meta.sizes, generator=generator, dtype=torch.float64)
        for leaf in bound.inputs
    ]
    loss = materialise(bound)(*(initial_parameter(leaf, sources) for leaf in bound.parameters), *inputs)
    return [loss, *torch.autograd.grad(loss, list(sources.values()))]


SOURCES: dict[str, tuple[int, ...]] = {"w": (6, 8), "c": (8, 6), "b": (6,), "e": (5, 8)}
X: dict[str, tuple[Shape, str]] = {"x": (("batch", 3, 8), "float64")}
LABELS: dict[str, tuple[Shape, str]] = {**X, "labels": (("batch", 3), "int64")}
W: dict[str, Shape] = {"w": (6, 8), "b": (6,)}
LINEAR = node("y", "linear.default", "@x", "@w", "@b", shape=("batch", 3, 6))


def ops(graph: LogicalGraph) -> list[str]:
    return [each.op.removeprefix("aten.") for each in graph.nodes]


def check(graph: LogicalGraph, step: Callable[[LogicalGraph], LogicalGraph], expected: list[str]) -> LogicalGraph:
    """The pass gives these ops, and equal numbers at two batch sizes."""
    changed = step(graph)
    assert ops(changed) == expected
    for batch in (2, 5):
        for one, two in zip(run(graph, batch), run(changed, batch), strict=True):
            torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-13)
    return changed


def test_dead_nodes_parameters_and_constants_go() -> None:
    dead = [node("dead", "relu.default", "@y", shape=("batch", 3, 6)), node("more", "neg.default", "@dead", shape=(6,))]
    unused = make_constant("unused", torch.zeros(2))
    graph = graph_of(
        [LINEAR, *dead, node("z", "relu.default", "@y", shape=("batch", 3, 6))], {**W, "e": (5, 8)}, X, [unused]
    )
    changed = drop_dead(graph)
    assert ops(changed) == ["linear.default", "relu.default", "sum.default"]
    assert changed.parameter_names == {"w", "b"}
    assert changed.constants == ()


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("contiguous.default", ()),
        ("clone.default", ()),
        ("dropout.default", (0.0, True)),
        ("dropout.default", (0.5, False)),
        ("slice.Tensor", (1, 0, None, 1)),
        ("slice.Tensor", (1,)),
        ("to.dtype", (DType("float64"),)),
        ("reshape.default", ((BATCH, 3, 6),)),
        ("expand.default", ((BATCH, 3, 6),)),
        ("permute.default", ((0, 1, 2),)),
        ("add.Tensor", (0,)),
    ],
)
def test_ops_that_return_their_input_go(op: str, args: tuple[Any, ...]) -> None:
    graph = graph_of([LINEAR, node("same", op, "@y", *args, shape=("batch", 3, 6))], W, X)
    check(graph, drop_no_ops, ["linear.default", "sum.default"])


@pytest.mark.parametrize(
    ("op", "args", "shape"),
    [
        ("dropout.default", (0.5, True), ("batch", 3, 6)),
        ("slice.Tensor", (2, 1, None, 1), ("batch", 3, 5)),
        ("permute.default", ((0, 2, 1),), ("batch", 6, 3)),
        ("add.Tensor", (1,), ("batch", 3, 6)),
        ("to.dtype", (DType("float32"),), ("batch", 3, 6)),
    ],
)
def test_ops_that_do_something_stay(op: str, args: tuple[Any, ...], shape: Shape) -> None:
    dtype = "float32" if op == "to.dtype" else "float64"
    graph = graph_of([LINEAR, node("other", op, "@y", *args, shape=shape, dtype=dtype)], W, X)
    assert ops(drop_no_ops(graph)) == ops(graph)


@pytest.mark.parametrize(
    ("op", "args", "shape", "canonical"),
    [
        ("view.default", ((-1, 18),), ("batch", 18), "reshape.default"),
        ("flatten.using_ints", (1, 2), ("batch", 18), "reshape.default"),
        ("unsqueeze.default", (1,), ("batch", 1, 3, 6), "reshape.default"),
        ("transpose.int", (1, -1), ("batch", 6, 3), "permute.default"),
        ("permute.default", ((0, -1, 1),), ("batch", 6, 3), "permute.default"),
        ("_to_copy.default", (), ("batch", 3, 6), "to.dtype"),
        ("pad.default", ((1, 0),), ("batch", 3, 7), "constant_pad_nd.default"),
        ("slice.Tensor", (2, None, 2**63 - 1), ("batch", 3, 6), "slice.Tensor"),
    ],
)
def test_views_take_their_canonical_form(op: str, args: tuple[Any, ...], shape: Shape, canonical: str) -> None:
    graph = graph_of([LINEAR, node("view", op, "@y", *args, shape=shape)], W, X)
    check(graph, canonical_views, ["linear.default", canonical, "sum.default"])


def test_a_split_becomes_slices_that_later_views_can_read() -> None:
    split = node("parts", "split.Tensor", "@y", 2, -1, shape=[("batch", 3, 2)] * 3)
    turned = node("turned", "transpose.int", "@parts:1", 1, 2, shape=("batch", 2, 3))
    graph = graph_of([LINEAR, split, turned], W, X)
    check(graph, canonical_views, ["linear.default", *["slice.Tensor"] * 3, "permute.default", "sum.default"])


def test_a_split_along_the_batch_is_refused() -> None:
    split = node("parts", "chunk.default", "@y", 2, 0, shape=[("batch", 3, 6)] * 2)
    with pytest.raises(UnsupportedError, match="batch"):
        canonical_views(graph_of([LINEAR, split, node("z", "neg.default", "@parts:1", shape=("batch", 3, 6))], W, X))


@pytest.mark.parametrize("bias", [True, False])
def test_a_product_on_flattened_rows_becomes_a_linear(bias: bool) -> None:
    operands = ("@b", "@flat", "@c") if bias else ("@flat", "@c")
    nodes = [
        node("flat", "reshape.default", "@x", (Sym("3*batch"), 8), shape=("3*batch", 8)),
        node("rows", "addmm.default" if bias else "mm.default", *operands, shape=("3*batch", 6)),
        node("y", "reshape.default", "@rows", (BATCH, 3, 6), shape=("batch", 3, 6)),
        node("z", "pow.Tensor_Scalar", "@y", 2, shape=("batch", 3, 6)),
    ]
    leaves: dict[str, Shape] = {"c": (8, 6), "b": (6,)} if bias else {"c": (8, 6)}
    changed = check(
        graph_of(nodes, leaves, X), view_addmm_to_linear, ["linear.default", "pow.Tensor_Scalar", "sum.default"]
    )
    assert {leaf.name: leaf.transforms for leaf in changed.parameters}["c.t"] == (("t",),)


def test_a_fused_projection_becomes_one_linear_per_part() -> None:
    parts = [
        node(f"p{index}", "slice.Tensor", "@y", 2, start, start + width, 1, shape=("batch", 3, width))
        for index, (start, width) in enumerate([(0, 2), (2, 4)])
    ]
    product = node("z", "matmul.default", "@t", "@p1", shape=("batch", 2, 4))
    turn = node("t", "permute.default", "@p0", (0, 2, 1), shape=("batch", 2, 3))
    graph = graph_of([LINEAR, *parts, turn, product], W, X)
    expected = ["linear.default", "linear.default", "permute.default", "matmul.default", "sum.default"]
    changed = check(graph, unfuse_split_linears, expected)
    assert [leaf.meta.shape for leaf in changed.parameters] == [(2, 8), (2,), (4, 8), (4,)]


def test_a_linear_that_is_also_read_whole_stays() -> None:
    parts = [
        node(f"p{index}", "slice.Tensor", "@y", 2, start, start + 3, 1, shape=("batch", 3, 3))
        for index, start in enumerate((0, 3))
    ]
    whole = node("cat", "cat.default", (Ref("y"), Ref("p0"), Ref("p1")), 2, shape=("batch", 3, 12))
    graph = graph_of([LINEAR, *parts, whole], W, X)
    assert ops(unfuse_split_linears(graph)) == ops(graph)


def test_gelu_written_out_becomes_one_op() -> None:
    shape: Shape = ("batch", 3, 6)
    nodes = [
        LINEAR,
        node("half", "mul.Tensor", "@y", 0.5, shape=shape),
        node("cube", "pow.Tensor_Scalar", "@y", 3.0, shape=shape),
        node("part", "mul.Tensor", "@cube", 0.044715, shape=shape),
        node("inner", "add.Tensor", "@y", "@part", shape=shape),
        node("scaled", "mul.Tensor", "@inner", 0.7978845608028654, shape=shape),
        node("tanh", "tanh.default", "@scaled", shape=shape),
        node("one", "add.Tensor", "@tanh", 1.0, shape=shape),
        node("gelu", "mul.Tensor", "@half", "@one", shape=shape),
    ]
    graph = graph_of(nodes, W, X)
    check(graph, lambda given: drop_dead(fuse_gelu(given)), ["linear.default", "gelu.default", "sum.default"])


@pytest.mark.parametrize(
    ("op", "args", "shape", "count"),
    [
        ("mean.dim", ((-1,), True), ("batch", 3, 1), 6.0),
        ("mean.dim", ((1, 2),), ("batch",), 18.0),
        ("mean.dim", ((0,),), (3, 6), BATCH),
        ("mean.default", (), (), Sym("batch*3*6")),
    ],
)
def test_a_mean_is_a_sum_over_its_count(op: str, args: tuple[Any, ...], shape: Shape, count: Any) -> None:
    graph = graph_of([LINEAR, node("mean", op, "@y", *args, shape=shape)], W, X)
    tail = [] if shape == () else ["sum.default"]
    changed = check(graph, explicit_means, ["linear.default", "sum.dim_IntList", "div.Tensor", *tail])
    assert changed.nodes[2].args[1] == count


def cross_entropy(logits: str, labels: str, *args: Any) -> Node:
    return node("loss", "cross_entropy_loss.default", logits, labels, *args, shape=())


FLATTENED = [
    LINEAR,
    node("rows", "reshape.default", "@y", (Sym("3*batch"), 6), shape=("3*batch", 6)),
    node("ids", "reshape.default", "@labels", (Sym("3*batch"),), shape=("3*batch",), dtype="int64"),
]
CLASSES_SECOND = [LINEAR, node("turned", "permute.default", "@y", (0, 2, 1), shape=("batch", 6, 3))]


@pytest.mark.parametrize("rest", [(), (None, 1, -100, 0.0), (None, 1, 2), (None, 2, 2)])
@pytest.mark.parametrize(
    ("nodes", "logits", "labels"), [(FLATTENED, "@rows", "@ids"), (CLASSES_SECOND, "@turned", "@labels")]
)
def test_cross_entropy_is_written_with_its_count(
    nodes: list[Node], logits: str, labels: str, rest: tuple[Any, ...]
) -> None:
    graph = graph_of([*nodes, cross_entropy(logits, labels, *rest)], W, LABELS)
    changed = explicit_cross_entropy(graph)
    check(graph, explicit_cross_entropy, ops(changed))
    picked = next(each for each in changed.nodes if each.op == "aten.gather.default")
    assert picked.outputs[0].shape == ("batch", 3, 1)
    assert ("div.Tensor" in ops(changed)) == (rest[1:2] != (2,))


@pytest.mark.parametrize("rest", [(Ref("b"),), (None, 0), (None, 1, -100, 0.1)])
def test_other_cross_entropies_are_refused(rest: tuple[Any, ...]) -> None:
    with pytest.raises(UnsupportedError, match="cross-entropy"):
        explicit_cross_entropy(graph_of([*FLATTENED, cross_entropy("@rows", "@ids", *rest)], W, LABELS))


def test_values_of_shapes_only_become_constants() -> None:
    nodes = [
        LINEAR,
        node("steps", "arange.default", 6, shape=(6,), dtype="int64"),
        node("row", "reshape.default", "@steps", (1, 6), shape=(1, 6), dtype="int64"),
        node("rows", "expand.default", "@row", (BATCH, 6), shape=("batch", 6), dtype="int64"),
        node("lifted", "reshape.default", "@rows", (BATCH, 1, 6), shape=("batch", 1, 6), dtype="int64"),
        node("z", "mul.Tensor", "@y", "@lifted", shape=("batch", 3, 6)),
        node("u", "add.Tensor", "@z", "@steps", shape=("batch", 3, 6)),
    ]
    graph = graph_of(nodes, W, X)
    changed = check(
        graph,
        lambda given: drop_dead(fold_constants(given)),
        ["linear.default", "expand.default", "mul.Tensor", "add.Tensor", "sum.default"],
    )
    assert {leaf.name: leaf.meta.shape for leaf in changed.constants} == {"steps": (6,), "lifted.row": (1, 1, 6)}


def test_values_that_do_not_compress_stay_ops() -> None:
    noise = make_constant("noise", torch.rand(1, 1, MAX_FOLDED_TEXT, generator=torch.Generator().manual_seed(0)))
    shape: Shape = ("batch", 1, MAX_FOLDED_TEXT)
    nodes = [
        LINEAR,
        node("wide", "cos.default", "@noise", shape=(1, 1, MAX_FOLDED_TEXT), dtype="float32"),
        node("rows", "expand.default", "@wide", (BATCH, 1, MAX_FOLDED_TEXT), shape=shape, dtype="float32"),
        node("first", "slice.Tensor", "@rows", 2, 0, 6, 1, shape=("batch", 1, 6), dtype="float32"),
        node("sums", "sum.dim_IntList", "@y", (1, 2), shape=("batch",)),
        node("z", "mul.Tensor", "@rows", "@lifted", shape=shape),
    ]
    nodes.insert(5, node("lifted", "reshape.default", "@sums", (BATCH, 1, 1), shape=("batch", 1, 1)))
    graph = graph_of(nodes, W, X, [noise])
    check(graph, fold_constants, ops(graph))


def test_equal_constant_nodes_become_one() -> None:
    views = [node(f"v{at}", "reshape.default", "@steps", (1, 6), shape=(1, 6), dtype="int64") for at in range(2)]
    nodes = [
        LINEAR,
        node("steps", "arange.default", 6, shape=(6,), dtype="int64"),
        *views,
        node("z", "mul.Tensor", "@y", "@v0", shape=("batch", 3, 6)),
        node("u", "add.Tensor", "@z", "@v1", shape=("batch", 3, 6)),
    ]
    expected = ["linear.default", "arange.default", "reshape.default", "mul.Tensor", "add.Tensor", "sum.default"]
    check(graph_of(nodes, W, X), share_constants, expected)


def attention(mask: torch.Tensor) -> LogicalGraph:
    nodes = [
        LINEAR,
        node("same", "logical_and.default", "@mask", "@mask", shape=tuple(mask.shape), dtype="bool"),
        node("z", "scaled_dot_product_attention.default", "@y", "@y", "@y", "@same", shape=("batch", 3, 6)),
    ]
    return graph_of(nodes, W, X, [make_constant("mask", mask)])


def test_a_lower_triangular_mask_becomes_is_causal() -> None:
    graph = attention(torch.ones(1, 3, 3, dtype=torch.bool).tril())
    expected = ["linear.default", "scaled_dot_product_attention.default", "sum.default"]
    changed = check(graph, lambda given: drop_dead(fold_constants(given)), expected)
    assert changed.nodes[1].args[3:6] == (None, 0.0, True)


@pytest.mark.parametrize("mask", [torch.ones(3, 3, dtype=torch.bool), torch.ones(1, 1, dtype=torch.bool)])
def test_other_masks_stay_masks(mask: torch.Tensor) -> None:
    changed = fold_constants(attention(mask))
    assert changed.nodes[-2].args[3] == Ref("same")


def test_nodes_are_named_by_op_and_order_around_taken_names() -> None:
    parameters: dict[str, Shape] = {"w": (6, 8), "relu_0": (6,)}
    nodes = [
        node("q", "linear.default", "@x", "@w", "@relu_0", shape=("batch", 3, 6)),
        node("r", "relu.default", "@q", shape=("batch", 3, 6)),
        node("s", "relu.default", "@r", shape=("batch", 3, 6)),
    ]
    names = [each.name for each in rename(graph_of(nodes, parameters, X)).nodes]
    assert names == ["linear_0", "relu_1", "relu_2", "sum_0"]


def test_canonical_graphs_do_not_change_again() -> None:
    graph = canonicalise(graph_of([*FLATTENED, cross_entropy("@rows", "@ids")], W, LABELS))
    assert canonicalise(graph) == graph
