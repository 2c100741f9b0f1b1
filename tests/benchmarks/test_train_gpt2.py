"""The benchmark of training: what its document and its picture say of losses."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.train_gpt2.__main__ import CASES, ONE_DEVICE, Result
from benchmarks.train_gpt2._chart import chart


def test_the_largest_difference_from_one_device_is_told_and_drawn() -> None:
    result = Result({ONE_DEVICE: {"losses": {1: 5.0, 2: 4.0, 3: 2.0}, "step_time_s": 0.1}})
    for at, name in enumerate(CASES, 1):
        result.cases[name] = {"losses": {2: 4.0, 3: 2.0 + at * 1e-3}, "step_time_s": 0.2}
    document = result.document()
    found = [case["largest_difference"] for case in document["cases"].values()]
    assert found == pytest.approx([0.0, *(at * 5e-4 for at in range(1, len(CASES) + 1))])
    drawn = ElementTree.fromstring(chart(document["cases"]))  # noqa: S314
    titles = [each.text for each in drawn.iter() if each.tag.endswith("title")]
    assert set(titles) == {ONE_DEVICE, *CASES}
