"""Rules in a graph's document: read back as written, part of the hash, refused by field where they break a limit."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from autosbp.errors import GraphError
from autosbp.graph.discovered_rules import DiscoveredOption, DiscoveredRule
from autosbp.graph.int_attributes import attribute, divide_attribute, integer_attributes
from autosbp.graph.serialize import from_dict
from autosbp.sbp.rules import check_graph
from autosbp.utils.json_io import canonical, loads
from tests.graph.documents import document

VALIDATOR = Draft202012Validator(json.loads((files("autosbp") / "data" / "graph.schema.json").read_text()))
RULE: dict[str, Any] = {
    "options": [{"ins": ["S0", "B"], "outs": ["S0"]}, {"ins": ["P", "P"], "outs": ["P"]}],
    "flops": 2.0,
    "sizes": [[0, 0], [1, 0]],
    "saved": [0, -1],
    "workspace": 3.0,
    "workspace_sizes": [[0, 0], [0, 0]],
}
CHANGES = (
    ("rules", {"shop.mix.default": RULE}),
    ("nodes.2.op", "shop.mix.default"),
    ("nodes.2.rule", "shop.mix.default"),
)


def changed(*more: tuple[str, Any]) -> dict[str, Any]:
    """The document with a custom op in the place of its addition, whose rule is in ``rules``."""
    base = copy.deepcopy(document(*CHANGES))
    for path, value in more:
        place: Any = base["rules"]["shop.mix.default"]
        *steps, last = path.split(".")
        for step in steps:
            place = place[int(step) if isinstance(place, list) else step]
        place[int(last) if isinstance(place, list) else last] = value
    return base


def test_rules_are_read_back_as_written_and_are_part_of_the_hash() -> None:
    graph = from_dict(changed())
    check_graph(graph)
    assert graph.rules == {
        "shop.mix.default": DiscoveredRule(
            (DiscoveredOption(("S0", "B"), ("S0",)), DiscoveredOption(("P", "P"), ("P",))),
            flops=2.0,
            sizes=((0, 0), (1, 0)),
            saved=(0, -1),
            workspace=3.0,
            workspace_sizes=((0, 0), (0, 0)),
        )
    }
    again = from_dict(loads(canonical(graph.to_dict())))
    assert again == graph
    assert again.bind(batch=6).rules == graph.rules
    VALIDATOR.validate(changed())
    for other in (document(*CHANGES[:2]), changed(("options.1.outs.0", "B")), changed(("reason", "is odd"))):
        assert from_dict(other).graph_hash != graph.graph_hash


def test_a_graph_without_rules_has_the_document_and_hash_that_it_had() -> None:
    assert "rules" not in from_dict(document()).to_dict()
    assert from_dict(document()).graph_hash == "214ea11aead752f4"


REFUSED = [
    ("options", 3, "options"),
    ("options.0.ins", ["S0"] * 1025, "options[0].ins"),
    ("options.0.ins.0", "S", "options[0].ins[0]"),
    ("options.0.ins.0", "Psum", "options[0].ins[0]"),
    ("options.0.ins.0", "S007", "options[0].ins[0]"),
    ("options.0.outs.0", 0, "options[0].outs[0]"),
    ("options.0.code", "x", "options[0].code"),
    ("options.0.divided", [[]], "options[0].divided[0]"),
    ("options.0.divided", [[1, "x"]], "options[0].divided[0]"),
    ("options.0.divided", [[-1]], "options[0].divided[0]"),
    ("options.0.divided", [[0] * 10], "options[0].divided[0]"),
    ("reason", "n" * 513, "reason"),
    ("random", 1, "random"),
    ("flops", -1, "flops"),
    ("sizes", [[0]], "sizes[0]"),
    ("sizes", [[0, -1]], "sizes[0]"),
    ("sizes", [[0, 0]] * 65, "sizes"),
    ("saved", [-2], "saved[0]"),
    ("saved", [0] * 1025, "saved"),
    ("workspace", -1, "workspace"),
    ("workspace_sizes", [[0]], "workspace_sizes[0]"),
    ("workspace_sizes", [[0, 0]] * 65, "workspace_sizes"),
    ("notation", "a -> a", "notation"),
]


@pytest.mark.parametrize(("path", "value", "field"), REFUSED)
def test_a_rule_that_breaks_a_limit_is_refused_by_field_and_by_the_schema(path: str, value: Any, field: str) -> None:
    wrong = changed((path, value))
    with pytest.raises(GraphError) as caught:
        from_dict(wrong)
    assert caught.value.field == f"rules.shop.mix.default.{field}"
    assert not VALIDATOR.is_valid(wrong)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("options.0.ins", ["S0"], "z.rule.options[0].ins"),
        ("options.0.outs", [], "z.rule.options[0].outs"),
        ("options.0.ins.1", "S1", "z.rule.options[0].ins"),
        ("options.0.divided", [[0]], "z.rule.options[0].divided"),
        ("options.0.divided", [["groups"]], "z.rule.options[0].divided"),
        ("sizes", [[2, 0]], "z.rule.sizes"),
        ("saved", [2], "z.rule.saved"),
        ("workspace_sizes", [[0, 7]], "z.rule.workspace_sizes"),
        ("sizes", [[1, 1]], "z.rule.sizes"),
    ],
)
def test_a_rule_that_does_not_fit_its_node_is_refused(path: str, value: Any, field: str) -> None:
    with pytest.raises(GraphError) as caught:
        check_graph(from_dict(changed((path, value))))
    assert caught.value.field == field


def test_a_node_may_only_name_a_rule_of_its_graph() -> None:
    with pytest.raises(GraphError, match="one of the graph's rules: shop.mix.default"):
        from_dict(document(*CHANGES[:2], ("nodes.2.rule", "shop.other")))
    assert len(from_dict(document(*CHANGES[:2])).rules) == 1
    with pytest.raises(GraphError, match="at most 4096"):
        from_dict(document(("rules", {str(at): RULE for at in range(4097)})))


def test_integer_attributes_are_found_read_and_divided_by_path() -> None:
    args, kwargs = (None, (4, (6, 8.0)), True), {"groups": 12}
    assert dict(integer_attributes(args, kwargs)) == {(1, 0): 4, (1, 1, 0): 6, ("groups",): 12}
    assert attribute(args, kwargs, (1, 1, 0)) == 6
    assert divide_attribute(args, kwargs, (1, 1, 0), 3) == ((None, (4, (2, 8.0)), True), {"groups": 12})
    assert divide_attribute(list(args), kwargs, ("groups",), 4) == (list(args), {"groups": 3})
