"""Ops that graphs may name, and arguments that torch would take on trust."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest
import torch

from autosbp.api import load_graph
from autosbp.errors import GraphError
from autosbp.executor.lowering import lower
from autosbp.graph.allowed_ops import ALLOWED_OPS, AUTOSBP_OPS, TORCH_LIBRARIES
from autosbp.graph.experts_op import CUSTOM_OPS as OWN_FUNCTIONS
from autosbp.graph.to_fx import check_shapes, make_constant, resolve_op
from autosbp.plan.plan import Signature, Strategy
from autosbp.sbp.layout import parse_nd_sbp
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.sbp.rules import RULES
from benchmarks.op_safety.__main__ import registered, run_calls

pytestmark = pytest.mark.integration

FLOAT = {"dtype": "float32"}


def document(
    op: str, args: list[Any], shape: list[int], tensors: dict[str, torch.Tensor | tuple[int, ...]], **kwargs: Any
) -> dict[str, Any]:
    """A graph of one op, whose loss is the sum of what it gives; tensors are constants, or parameters by their shape."""
    constants = [make_constant(name, value) for name, value in tensors.items() if isinstance(value, torch.Tensor)]
    parameters = {name: value for name, value in tensors.items() if not isinstance(value, torch.Tensor)} | {"w": ()}
    return {
        "schema": "autosbp.graph/1", "name": "one", "inputs": [],
        "parameters": [{"name": name, "shape": list(sizes), **FLOAT} for name, sizes in parameters.items()],
        "constants": [
            {"name": each.name, "shape": list(each.meta.sizes), "dtype": each.meta.dtype, "data": each.data}
            for each in constants
        ],
        "nodes": [
            {"name": "op", "op": op, "args": args, "kwargs": kwargs, "outputs": [{"shape": shape, **FLOAT}]},
            {"name": "sum", "op": "aten.sum.default", "args": [{"ref": "op"}], "outputs": [{"shape": [], **FLOAT}]},
            {"name": "loss", "op": "aten.add.Tensor", "args": [{"ref": "sum"}, {"ref": "w"}],
             "outputs": [{"shape": [], **FLOAT}]},
        ],
        "loss": {"ref": "loss"},
    }  # fmt: skip


def ref(name: str) -> dict[str, str]:
    return {"ref": name}


def test_every_rule_is_of_an_op_that_graphs_may_name() -> None:
    assert {name for name in RULES if name.startswith("aten.")} <= ALLOWED_OPS
    assert {f"autosbp.{name}.default" for name in OWN_FUNCTIONS} == AUTOSBP_OPS


def test_every_op_that_graphs_may_name_is_a_functional_one_of_this_torch() -> None:
    assert {*registered()} >= ALLOWED_OPS
    for name in ALLOWED_OPS:
        resolve_op(name)


def test_every_other_op_of_this_torch_is_refused_by_name() -> None:
    others = {*registered()} - ALLOWED_OPS
    assert len(others) > 2000
    for name in others:
        with pytest.raises(GraphError, match=r"^op\.op: "):
            load_graph(document(name, [ref("w")], [], {}))


@pytest.mark.parametrize(
    "name",
    ["aten._ctc_loss.default", "aten._sparse_coo_tensor_unsafe.default", "aten.save.default", "aten._print.default"],
)
def test_ops_that_gave_memory_away_or_filled_the_disk_are_refused(name: str) -> None:
    with pytest.raises(GraphError, match="functional, argument-checking ops"):
        load_graph(document(name, [ref("w")], [], {}))
    with pytest.raises(GraphError, match="functional, argument-checking ops"):
        resolve_op(name)


def test_a_rank_knows_every_library_of_ops_that_torch_has() -> None:
    program = (
        "import torch, autosbp.executor.trial_worker, torch._inductor.compile_fx, torch.distributed.tensor\n"
        "from autosbp.graph.to_fx import loaded_libraries\n"
        "print(*loaded_libraries())"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert set(found) - TORCH_LIBRARIES <= {"aten", "autosbp"}


def test_a_rank_runs_custom_ops_of_the_libraries_that_it_was_told_of_alone() -> None:
    program = (
        "import torch\n"
        "from autosbp.errors import GraphError\n"
        "from autosbp.graph.to_fx import allow_op_libraries, resolve_op\n"
        "for name in ('one', 'two'):\n"
        "    torch.library.custom_op(f'{name}::twice', lambda x: 2 * x, mutates_args=(), schema='(Tensor x) -> Tensor')\n"
        "allow_op_libraries({'one'})\n"
        "resolve_op('one.twice.default')\n"
        "try:\n"
        "    resolve_op('two.twice.default')\n"
        "except GraphError as error:\n"
        "    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert "the library two, after importing it" in said


@pytest.mark.parametrize(
    ("op", "args", "tensors", "shape"),
    [
        ("aten.embedding.default", [ref("p"), ref("index")], {"p": (5, 3), "index": torch.tensor([0, 5])}, [2, 3]),
        ("aten.index_select.default", [ref("p"), 0, ref("index")], {"p": (5, 3), "index": torch.tensor([-6, 0])}, [2, 3]),
        ("aten.index.Tensor", [ref("p"), [ref("index")]], {"p": (5, 3), "index": torch.tensor([2**40])}, [1, 3]),
        ("aten.nll_loss.default", [ref("p"), ref("index")], {"p": (2, 3), "index": torch.tensor([0, 3])}, []),
    ],
)  # fmt: skip
def test_constants_that_pick_beyond_a_dim_are_refused(
    op: str, args: list[Any], tensors: dict[str, Any], shape: list[int]
) -> None:
    with pytest.raises(GraphError, match="index: .* expected .*, as index of op"):
        load_graph(document(op, args, shape, tensors))


@pytest.mark.parametrize(
    ("op", "args", "tensors"),
    [
        ("aten.amin.default", [ref("w"), [1]], {}),
        ("aten.group_norm.default", [ref("p"), 0], {"p": (2, 4, 3)}),
        ("aten.upsample_nearest2d.default", [ref("p"), [0, 4]], {"p": (1, 2, 4, 4)}),
        ("aten.index_reduce.default", [ref("p"), 7, ref("index"), ref("p"), "prod"],
         {"p": (2, 3), "index": torch.tensor([0, 1])}),
    ],
)  # fmt: skip
def test_arguments_that_no_rule_expects_are_refused(op: str, args: list[Any], tensors: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match=r"op\."):
        load_graph(document(op, args, [2, 3], tensors))


def test_inputs_that_pick_beyond_a_dim_are_refused() -> None:
    given = document("aten.embedding.default", [ref("p"), ref("index")], [4, 3], {"p": (5, 3)})
    given["inputs"] = [{"name": "index", "shape": [4], "dtype": "int64", "high": 6}]
    with pytest.raises(GraphError, match=r"inputs\[0\].high: 6 .* at most 5, the size that op indexes"):
        load_graph(given)
    given["inputs"][0]["high"] = 5
    load_graph(given)


def lstm(**changed: tuple[int, ...]) -> dict[str, Any]:
    shapes = {"x": (4, 2, 3), "h": (1, 2, 5), "c": (1, 2, 5), "wi": (20, 3), "wh": (20, 5), "bi": (20,), "bh": (20,)}
    args = [
        ref("x"),
        [ref("h"), ref("c")],
        [ref(name) for name in ("wi", "wh", "bi", "bh")],
        True,
        1,
        0.0,
        False,
        False,
    ]
    given = document("aten.lstm.input", [*args, False], [4, 2, 5], {**shapes, **changed})
    given["nodes"][0]["outputs"] += [{"shape": [1, 2, 5], **FLOAT}] * 2
    return given


@pytest.mark.parametrize(
    ("name", "shape"),
    [("wh", (20, 6)), ("wi", (16, 3)), ("bi", (4,)), ("c", (1, 1, 5)), ("h", (2, 2, 5)), ("x", (4, 2, 2))],
)
def test_weights_and_states_of_recurrent_layers_have_the_shapes_that_kernels_assume(
    name: str, shape: tuple[int, ...]
) -> None:
    check_shapes(load_graph(lstm()))
    with pytest.raises(GraphError, match="op.args"):
        load_graph(lstm(**{name: shape}))


def test_quotients_of_integers_are_not_truncated() -> None:
    least = torch.tensor([torch.iinfo(torch.int64).min])
    given = document(
        "aten.div.Tensor_mode", [ref("a"), ref("b")], [1], {"a": least, "b": torch.tensor([-1])}, rounding_mode="trunc"
    )
    given["nodes"][0]["outputs"][0]["dtype"] = "int64"
    with pytest.raises(GraphError, match='expected "floor" for integers'):
        load_graph(given)


def test_op_outputs_match_their_node() -> None:
    given = document("aten.repeat.default", [ref("p"), [2, 1]], [4, 3], {"p": (2, 3)})
    check_shapes(load_graph(given))
    given["nodes"][0]["outputs"][0]["shape"] = [40, 3]
    with pytest.raises(GraphError, match="op.outputs"):
        check_shapes(load_graph(given))


@pytest.mark.parametrize("part", range(4))
def test_no_op_that_graphs_may_name_reads_beyond_its_tensors(part: int) -> None:
    names = random.Random(part).sample(sorted(ALLOWED_OPS), 40)
    ended = {name: endings for name in names if (endings := run_calls(name, (), 15, part)[1])}
    assert not ended


def test_a_rule_of_a_document_gives_no_kernel_a_part_that_it_would_read_beyond() -> None:
    given = lstm()
    layouts = {"ins": ["B", "B", "B", "B", "S0", "B", "B"], "outs": ["B", "B", "B"]}
    given["rules"] = {"forged": {"options": [layouts]}}
    given["nodes"][0]["rule"] = "forged"
    graph = load_graph(given)
    whole, split = parse_nd_sbp("B"), parse_nd_sbp("S0")
    signatures = {
        "op": Signature((*[whole] * 4, split, whole, whole), (whole,) * 3),
        "sum": Signature((whole,), (whole,)),
        "loss": Signature((whole, whole), (whole,)),
    }
    once = parse_nd_sbp("I")
    paths = {((), 4, True, whole, once): (whole, once)}
    stored = {leaf.name: split if leaf.name == "wh" else whole for leaf in graph.parameters}
    strategy = Strategy(Mesh((Axis("g", 2, 0),), (2,)), signatures, stored, paths, 1, 1, "adamw")
    with pytest.raises(GraphError, match=r"op\.args\.weights\[1\]: \[10, 5\] .* \[20, 5\]"):
        lower(graph.bound_at_capture, strategy, 0)
