"""Reading files: what is no document, or one that would fill the memory, is an ``InputError``."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosbp.cluster.hardware import _PRESETS
from autosbp.errors import InputError
from autosbp.utils import json_io
from autosbp.utils.json_io import Fields, loads, loads_yaml, read_file, read_trusted_yaml

pytestmark = pytest.mark.integration


def merged_again(levels: int) -> str:
    """A few lines, each of which merges the one before ten times."""
    lines = ["a0: &a0 {" + ", ".join(f"k{key}: 1" for key in range(10)) + "}"]
    lines += [f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}" for level in range(1, levels)]
    return "\n".join(lines)


def merged_at_once(halves: int) -> str:
    """One mapping of two halves of so many members."""
    lines = [f"{name}: &{name} {{" + ", ".join(f"{name}{key}: 1" for key in range(halves)) + "}" for name in "ab"]
    return "\n".join([*lines, "c: {<<: [*a, *b]}"])


@pytest.mark.parametrize(
    "text",
    [
        "a: 2001-99-99",
        "[" * 5000,
        "a: *b",
        "!!python/object:os.system {}",
        "{a: ",
        "\x00",
        "? {}\n: 1",
        merged_at_once(5001),
    ],
    ids=["no date", "deep", "no anchor", "python", "cut off", "control", "key", "merges"],
)
def test_bad_yaml_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected valid YAML"):
        loads_yaml(text, "f.yaml")


def test_merges_are_read() -> None:
    assert loads_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}")["b"] == {"x": 1, "y": 2}
    assert len(loads_yaml(merged_at_once(5000))["c"]) == 10_000


def test_repeated_yaml_merges_do_not_grow() -> None:
    document = loads_yaml(merged_again(24))  # 10^24 members, were each brought as often as it is merged
    assert document["a23"] == document["a0"]


@pytest.mark.parametrize("text", ["1e9", "1.0e9", "1.E+9", "+1.0e09", "10.0e+8", ".1e10"])
def test_numbers_of_yaml_may_have_exponents_without_a_sign(text: str) -> None:
    assert loads_yaml(f"a: {text}") == {"a": 1e9}


@pytest.mark.parametrize("text", ["1e-6", "1.0e-6", "+1e-06", "1.E-6"])
def test_numbers_of_yaml_may_have_exponents_without_a_point(text: str) -> None:
    assert loads_yaml(f"a: {text}") == {"a": 1e-6}


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"b": [{"a": 1, "c": 2, "a": 1}]}'])
def test_duplicate_members_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="^a: [12] is invalid: duplicate name in an object"):
        loads(text)
    assert loads(text, checks_names=False)


def test_another_kind_of_document_is_refused_before_its_fields_are() -> None:
    with pytest.raises(InputError, match="^schema: 'other/2' is invalid: expected 'own/1', the version"):
        Fields({"other": 1, "schema": "other/2"}, "", ("schema",), "own/1")
    with pytest.raises(InputError, match="^at.schema: None is invalid: this field is required"):
        Fields({"other": 1}, "at", ("schema",), "own/1")
    with pytest.raises(InputError, match="^other: 1 is invalid: unknown field; known fields: schema"):
        Fields({"other": 1, "schema": "own/1"}, "", ("schema",), "own/1")


@pytest.mark.parametrize("rate", [0, 5e-324, 0.99, 1e25, float("nan"), True, "1"])
def test_rates_are_at_least_one_per_second(rate: object) -> None:
    with pytest.raises(InputError, match=r"^at.rate: .* is invalid: expected a number in \[1, 1e\+24\]"):
        Fields({"rate": rate}, "at", ("rate",)).rate("rate")
    assert Fields({"rate": 1}, "at", ("rate",)).rate("rate") == 1.0


@pytest.mark.parametrize("text", ["1e9x", "e9", "1e", "v1.0e9", "'1e9'"])
def test_texts_of_yaml_that_look_like_numbers_stay_texts(text: str) -> None:
    assert loads_yaml(f"a: {text}") == {"a": text.strip("'")}


@pytest.mark.parametrize("name", ["f.yaml", "f.json"])
def test_files_are_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(json_io, "MAX_YAML_BYTES", 8)
    monkeypatch.setattr(json_io, "MAX_JSON_BYTES", 8)
    (tmp_path / name).write_text('{"a": 1}')
    assert read_file(tmp_path / name) == {"a": 1}
    (tmp_path / name).write_text('{"a": 12}')
    with pytest.raises(InputError, match="at most 8 bytes are read"):
        read_file(tmp_path / name)
    (tmp_path / name).write_bytes(b'"\xff"')
    with pytest.raises(InputError, match="expected a readable text file"):
        read_file(tmp_path / name)


@pytest.mark.parametrize("value", [10**400, -(10**400), True, "1", None, [1.0]])
def test_non_float_numbers_are_refused(value: object) -> None:
    fields = Fields({"a": value}, "", ("a",))
    for accessor in (fields.number, fields.positive):
        with pytest.raises(InputError, match="^a: "):
            accessor("a")


@pytest.mark.parametrize("text", ['{"a": 1e999}', '["\\ud800"]', b'["\\ud800"]', b'["\xed\xa0\x80"]', "-1e400"])
def test_values_without_a_json_form_are_refused(text: str | bytes) -> None:
    with pytest.raises(InputError, match="finite|valid Unicode"):
        loads(text)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_named_with_its_file(number: str) -> None:
    with pytest.raises(InputError, match=f"^calib.json: '{number}' is invalid"):
        loads(f'{{"a": {number}}}', "calib.json")


def test_yaml_texts_hold_whole_characters() -> None:
    assert loads_yaml('"\\u00e9"') == "é"
    with pytest.raises(InputError, match="valid YAML"):
        loads_yaml('"\\ud800"')


def test_a_file_of_our_own_is_read_as_any_other() -> None:
    found = read_trusted_yaml(_PRESETS)
    assert found["clusters"] and found == read_file(_PRESETS)
