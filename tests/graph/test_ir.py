from __future__ import annotations

import pytest
import torch

from autosbp.errors import GraphError, InputError
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph.ir import Parameter, Ref, TensorMeta
from autosbp.graph.serialize import from_dict
from autosbp.graph.to_fx import initial_parameter, resolve_op, to_graph_module
from tests.graph.documents import document


def test_binding_replaces_every_symbol() -> None:
    bound = from_dict(document()).bind(batch=5)
    assert bound.symbols == {}
    assert bound.meta(Ref("y")).sizes == (5, 3)
    assert bound.meta(Ref("x")).sizes == (5, 2)
    assert bound.nodes[3].args[1] == (15,)
    assert bound.nodes[6].args[1] == 15
    assert bound.meta(Ref("z")).num_bytes == 60


def test_binding_needs_a_value_for_each_symbol() -> None:
    with pytest.raises(InputError, match=r"symbols\.batch"):
        from_dict(document()).bind(seq=5)


def test_sizes_of_an_unbound_shape_are_an_error() -> None:
    with pytest.raises(TypeError, match="bind the graph first"):
        _ = TensorMeta(("batch", 3), "float32").sizes


def test_constants_are_what_neither_parameters_nor_inputs_reach() -> None:
    assert from_dict(document()).constant_names == {"offset", "two"}


def test_gradients_flow_through_floats_that_depend_on_a_parameter() -> None:
    graph = from_dict(document())
    assert graph.differentiable == {"w", "b", "y", "z", "flat", "cast", "mean", "loss"}


def test_a_comparison_stops_the_gradient() -> None:
    outputs = [{"shape": ["batch", 3], "dtype": "bool"}]
    graph = from_dict(document(("nodes.2.op", "aten.eq.Tensor"), ("nodes.2.outputs", outputs)))
    assert "z" not in graph.differentiable
    assert "loss" not in graph.differentiable


def test_a_summary_counts_parameters_and_nodes() -> None:
    summary = from_dict(document()).summary()
    assert (summary["num_parameters"], summary["parameter_bytes"], summary["num_nodes"]) == (9, 36, 7)


def test_a_graph_of_plain_data_runs_as_a_module() -> None:
    graph = from_dict(document()).bind(batch=2)
    w, b = torch.arange(6.0).reshape(3, 2), torch.ones(3)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert to_graph_module(graph)(w, b, x, torch.zeros(2)) == (x @ w.t() + b + 2).mean()


def test_a_parameter_is_cut_out_of_the_checkpoints_tensor() -> None:
    parameter = Parameter("q", TensorMeta((2, 3), "float32"), "c_attn", (("t",), ("slice", 0, 2, 4)))
    source = torch.arange(18.0).reshape(3, 6)
    assert torch.equal(initial_parameter(parameter, {"c_attn": source}), source.t()[2:4])


def test_casting_changes_every_float_tensor_and_cast() -> None:
    graph = cast_floats(from_dict(document()), "float32", "float64")
    assert {meta.dtype for metas in graph.metas.values() for meta in metas} == {"float64", "int64"}
    assert graph.nodes[4].args[1].name == "float64"
    assert to_graph_module(graph.bind(batch=2))(
        torch.zeros(3, 2).double(), torch.zeros(3).double(), torch.zeros(2, 2).double(), torch.zeros(2)
    ) == 2.0  # fmt: skip


def test_casting_keeps_numbers_within_what_the_new_type_holds() -> None:
    given = document()
    least = float(torch.finfo(torch.float32).min)
    given["nodes"][0]["kwargs"] = {"scale": least, "near": 1.5}
    short = cast_floats(from_dict(given), "float32", "bfloat16").nodes[0].kwargs
    assert short == {"scale": float(torch.finfo(torch.bfloat16).min), "near": 1.5}
    assert cast_floats(from_dict(given), "float32", "float64").nodes[0].kwargs["scale"] == least


@pytest.mark.parametrize(
    "name",
    [
        "os.system", "os.system.default", "prims.add.default", "aten.nothing.default", "aten.add.nothing",
        "aten.add_.Tensor", "aten.from_file.default", "_c10d_functional.all_reduce.default", "autosbp.other.default",
    ],
)  # fmt: skip
def test_only_functional_ops_of_torch_and_of_loaded_libraries_are_run(name: str) -> None:
    with pytest.raises(GraphError, match="op"):
        resolve_op(name)
