"""Every example, run as a user runs it, prints the facts of the paper that it is about."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.integration]

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = ("train_own_data", "train_gpt2")  # tests/examples/test_train_own_data.py
PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("[a-z]*.py") if path.stem not in ("common", "train", *SCRIPTS))


@cache
def printed(name: str) -> str:
    """What an example prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(name: str, head: str) -> dict[str, dict[str, str]]:
    """The table whose first column is called ``head``: its rows by their first cell, each by column."""
    found: dict[str, dict[str, str]] = {}
    lines = iter(printed(name).splitlines())
    for line in lines:
        columns = re.split(r"\s{2,}", line)
        if columns[0] == head and len(columns) > 1:
            for row in lines:
                cells = re.split(r"\s{2,}", row)
                if len(cells) != len(columns):
                    break
                found[cells[0]] = dict(zip(columns, cells, strict=True))
    assert found, f"{head!r} heads no table of {name}"
    return found


def number(text: str) -> float:
    return float(text.replace(",", ""))


def pair(text: str) -> tuple[float, float]:
    """``predicted / measured``."""
    one, two = text.split(" / ")
    return number(one), number(two)


def measured(text: str) -> float:
    return pair(text)[1]


def test_every_example_is_in_the_readme_and_tested() -> None:
    text = (EXAMPLES / "README.md").read_text()
    assert all(f"examples/{name}.py" in text for name in SCRIPTS)
    for name in PROGRAMS:
        assert f"python examples/{name}.py" in text
        assert f"python examples/{name}.py" in (EXAMPLES / f"{name}.py").read_text()
        assert f'"{name}"' in Path(__file__).read_text()


def test_table_4_places_values_as_the_paper_says() -> None:
    values = rows("oneflow_table4", "value")
    assert {name: (row["ranks"], row["layout"]) for name, row in values.items()} == {
        "A0": ("[0, 1]", "S0"), "B0": ("[0, 1]", "B"), "Y0": ("[0, 1]", "S0"), "Y0 on P1": ("[2, 3]", "B"),
        "B1": ("[2, 3]", "S1"), "Y2": ("[2, 3]", "S1"),
    }  # fmt: skip
    assert [values[name]["on rank 3"] for name in values] == ["-", "-", "-", "4 x 8", "8 x 3", "4 x 3"]
    assert [values[name]["on rank 0"] for name in values] == ["2 x 5", "5 x 8", "2 x 8", "-", "-", "-"]
    assert "as in the paper, and as on one device" in printed("oneflow_table4")


@pytest.mark.long
def test_a_partial_value_kept_through_the_second_product_sends_less_and_is_what_search_finds() -> None:
    eager = rows("partial_deferral", "Y = U V W")
    assert {row["U V"] for row in eager.values()} == {"P"}
    assert (eager["kept to the end"]["Y"], eager["reduced in between"]["Y"]) == ("P", "B")
    plans = rows("partial_deferral", "plan")
    assert {row["as predicted"] for row in plans.values()} == {"True"}
    kept, reduced = (plans[name] for name in ("as search finds", "reduced in between"))
    assert kept["(X A V) W"].startswith("P")
    assert number(kept["KiB sent a step"]) < number(reduced["KiB sent a step"]) / 2
    assert number(kept["ms predicted"]) < number(reduced["ms predicted"])
    assert max(number(row["error"]) for row in plans.values()) < 1e-5


@pytest.mark.long
def test_zero_falls_out_of_storage_layouts() -> None:
    memory = rows("zero", "KiB per device: predicted / measured")
    for part in ("parameters", "optimizer"):
        assert all(len(set(pair(row[part]))) == 1 for row in memory.values())  # predicted as measured
    for stage in ("ZeRO-1", "ZeRO-2", "ZeRO-3"):
        for part, read in (("parameters", measured), ("optimizer", measured), ("gradients", number)):
            assert read(memory[stage][part]) == pytest.approx(read(memory["data parallel"][part]) / 4, abs=1)
    peaks = [measured(memory[stage]["peak of a step"]) for stage in ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3")]
    assert peaks == sorted(peaks, reverse=True)
    traffic = rows("zero", "in a step")
    assert {row["as predicted"] for row in traffic.values()} == {"True"}
    plain, third = (number(traffic[stage]["KiB sent"]) for stage in ("data parallel", "ZeRO-3"))
    assert (
        number(traffic["ZeRO-1"]["KiB sent"]) == number(traffic["ZeRO-2"]["KiB sent"]) == pytest.approx(plain, rel=1e-3)
    )
    assert third == pytest.approx(1.5 * plain, rel=1e-2)
    assert max(number(traffic[stage]["error"]) for stage in ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3")) < 1e-5


def test_a_cast_before_the_gather_halves_what_is_sent_as_in_figure_14() -> None:
    traffic = rows("zero", "in a step")
    late, early = (traffic[name] for name in ("gather float32, then cast", "cast to bfloat16, then gather"))
    assert number(early["KiB sent"]) == pytest.approx(number(late["KiB sent"]) / 2, rel=1e-2)
    memory = rows("zero", "KiB per device: predicted / measured")
    one, two = (memory[row]["peak of a step"] for row in ("cast to bfloat16, then gather", "gather float32, then cast"))
    assert measured(one) < measured(two) / 2


def test_split_classes_send_two_numbers_a_sample_and_train_as_one_device() -> None:
    ops = rows("insightface", "op of the head")
    assert ops["aten.linear.default"]["layouts"] == "B,B S0,S0 -> S1,S1"
    assert ops["aten.log_softmax.int"]["layouts"] == "S1,S1 -> S1,S1"
    softmax = re.findall(r"(forward|backward)\s+(\w+)\s+log_softmax_0\s+([\d,]+)", printed("insightface"))
    numbers, batch, ranks = 4, 32, 4  # bytes of one
    assert softmax == [
        ("forward", "all_gather", f"{2 * numbers * batch * ranks:,}"), ("backward", "all_reduce", str(numbers * batch)),
    ]  # fmt: skip
    found = rows("insightface", "per device and step")
    parallel, split = found["data parallel"], found["classes split"]
    assert parallel["as predicted"] == split["as predicted"] == "True"
    assert parallel["loss"] == split["loss"]
    assert max(number(row["of gradients"]) for row in found.values()) < 1e-5
    assert number(split["KiB sent"]) < number(parallel["KiB sent"]) / 100
    assert number(split["KiB trained"]) < number(parallel["KiB trained"]) / 3.9
    assert "left free, search stores the head S0,S0" in printed("insightface")


@pytest.mark.long
def test_split_tables_fit_and_send_less_where_data_parallelism_does_not_fit() -> None:
    found = rows("wide_deep", "per device and step")
    parallel = found["data parallel"]
    assert {row["as predicted"] for row in found.values()} == {"True"}
    assert len({row["loss"] for row in found.values()}) == 1
    assert max(number(row["error of gradients"]) for row in found.values()) < 1e-5
    assert found["rows split, S0"]["tables"].split()[0] == "S0,S0"
    assert found["width split, S1"]["tables"].split()[0] == "S1,S1"
    for label in ("rows split, S0", "width split, S1", "as search finds"):
        assert number(found[label]["KiB sent"]) < number(parallel["KiB sent"]) / 20
        assert number(found[label]["KiB trained"]) < number(parallel["KiB trained"]) / 3
    times = {label: pair(row["ms, predicted / measured"])[0] for label, row in found.items()}
    assert times["as search finds"] == min(times.values())
    assert re.search(r"data parallel    infeasible: memory_limit_bytes", printed("wide_deep"))
