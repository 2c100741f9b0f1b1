"""Settings of the trainer, and the learning rate that follows from them."""

from __future__ import annotations

import pytest

from autosbp.errors import InputError
from autosbp.training import TrainerSettings


def rates(schedule: str, warmup: int) -> list[float]:
    settings = TrainerSettings(steps=11, learning_rate=2.0, schedule=schedule, warmup=warmup)
    return [settings.rate(step) for step in range(1, 12)]


def test_a_rate_grows_linearly_and_falls_to_a_tenth() -> None:
    assert rates("constant", 4) == [0.5, 1.0, 1.5, *[2.0] * 8]
    linear = rates("linear", 0)
    assert linear[0] == 2.0 and linear[5] == pytest.approx(1.1) and linear[-1] == pytest.approx(0.2)
    cosine = rates("cosine", 1)
    assert cosine[0] == cosine[1] == 2.0 and cosine[-1] == pytest.approx(0.2)
    assert cosine[1:] == sorted(cosine[1:], reverse=True)


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("steps", 0, "at least 1"),
        ("learning_rate", float("nan"), "more than 0"),
        ("weight_decay", -0.1, "at least 0"),
        ("schedule", "step", "one of cosine, linear, constant"),
        ("warmup", 2000, "at most the 1000 steps"),
        ("profile", 1001, "1 to 1000"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, value: object, said: str) -> None:
    with pytest.raises(InputError, match=f"{setting}: .*{said}"):
        TrainerSettings(**{setting: value})
