"""Found layouts on disk: kept by schema, attributes and stand-ins; broken files are rebuilt; what is read is proved again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from autosbp.discovery import _graph_rules as discovery_graph
from autosbp.discovery._cache import cache_dir, key_of, read_cached, write_cached
from autosbp.discovery._call import Call, Tensor, make_call
from autosbp.discovery._graph_rules import discover_rule
from autosbp.discovery._stand_ins import StandIn, stand_in
from autosbp.graph.discovered_rules import DiscoveredOption, DiscoveredRule
from tests.discovery import library  # noqa: F401 - defines the ops

OP = torch.ops.shop.swiglu.default
ROTARY = torch.ops.shop.rotary.default


def call(op: Any = OP, shapes: tuple[tuple[int, ...], ...] = ((4, 16, 24), (48, 24), (48, 24)), *more: Any) -> Call:
    args = [Tensor(shape, torch.float64, tracked=True) for shape in shapes]
    return make_call(op, (*args, *more), {}, lambda arg: arg if isinstance(arg, Tensor) else None)


def small(given: Call | None = None) -> StandIn:
    return stand_in(given or call(), [(4, 16, 48)])


def files() -> list[Path]:
    return sorted(cache_dir().glob("*")) if cache_dir().exists() else []


def key(*calls: Call) -> dict[str, Any]:
    found = key_of(*calls)
    assert found is not None
    return found


def test_a_second_search_reads_what_the_first_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    first = discover_rule(small())
    (path,) = files()
    assert json.loads(path.read_bytes())["key"]["torch"] == torch.__version__
    monkeypatch.setattr(discovery_graph, "search", None)
    assert discover_rule(small()) == first
    other_model = call(shapes=((8, 512, 768), (3072, 768), (3072, 768)))
    assert discover_rule(stand_in(other_model, [(8, 512, 3072)])) == first, (
        "sizes in the same order share their stand-ins"
    )
    assert files() == [path]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'{"schema": "autosbp.discovery/2"}', b"x" * (2**20 + 1)],
    ids=["empty", "cut short", "no mapping", "no text", "other version", "too large"],
)  # fmt: skip
def test_a_broken_file_is_ignored_with_a_warning_and_rebuilt(content: bytes) -> None:
    first = discover_rule(small())
    (path,) = files()
    path.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="ignoring .*, which will be rewritten"):
        assert discover_rule(small()) == first
    assert discover_rule(small()) == first
    assert files() == [path]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ((DiscoveredOption(("S2", "B", "B"), ("S2",)),), "wrong"),
        ((DiscoveredOption(("P", "B", "B"), ("P",)),), "not linear"),
        ((DiscoveredOption(("S0",), ("S0",)),), "of another number of tensors"),
        ((DiscoveredOption(("S9", "B", "B"), ("S0",)),), "of dims that there are not"),
        ((), "without layouts"),
    ],
)
def test_cached_rules_are_verified_again(options: tuple[DiscoveredOption, ...], what: str) -> None:
    """An op may have changed under its schema."""
    stand = small()
    first = discover_rule(stand)
    assert stand.confirmation_call is not None
    write_cached(key(stand.call, stand.confirmation_call), DiscoveredRule(options))
    assert discover_rule(stand) == first, what


def test_cache_keys_differ_for_ops_with_different_layouts() -> None:
    shapes = ((6, 12, 36), (12, 3), (12, 3))
    base = key(call(ROTARY, shapes, 6))
    assert key(call(ROTARY, shapes, 6)) == base
    assert key(call(ROTARY, shapes, 12)) != base
    assert key(call(ROTARY, ((6, 12, 36), (12, 6), (12, 6)), 6)) != base
    assert key(call(OP, shapes)) != key(call(OP, (*shapes[:2], (3, 12))))
    lower = call(ROTARY, shapes, 6)
    assert key(Call(lower.op, lower.args, {}, (Tensor((6, 12, 36), torch.float32, True), *lower.tensors[1:]))) != base
    assert key(Call(lower.op, lower.args, {}, (Tensor((6, 12, 36), torch.float64), *lower.tensors[1:]))) != base
    assert key_of(call(torch.mm)) is None, "a function has no schema"


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert discover_rule(small()).options
    assert read_cached(key(call())) is None


def test_ops_without_layouts_are_not_cached() -> None:
    """Its reason may go away, and nothing could prove it again."""
    mix = call(torch.ops.shop.sort_mix.default, ((4, 16, 24),))
    rule = discover_rule(stand_in(mix, [(4, 16, 24)]))
    assert rule == DiscoveredRule((), "has no layout that splits its work", saved=(0,))
    assert files() == []
