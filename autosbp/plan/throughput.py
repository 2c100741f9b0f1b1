"""Throughput, utilisation and cost of a step, as members of a plan document.

| member | meaning |
|---|---|
| ``samples_per_s`` | samples of the global batch over the step time |
| ``sequence_length`` | tokens of a sample; null for models without a sequence |
| ``tokens_per_s`` | every position of a sequence counts: sequences are packed |
| ``mfu`` | model FLOPs utilisation: FLOPs of the model over what the devices do at their peaks (``costmodel.model_work``) |
| ``hours_per_billion_tokens`` | hours of the whole cluster |
| ``price_per_billion_tokens`` | US dollars; null unless the cluster states a price per device and hour |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

THROUGHPUT = (
    "samples_per_s", "sequence_length", "tokens_per_s", "mfu", "hours_per_billion_tokens", "price_per_billion_tokens",
)  # fmt: skip
_BILLION = 10**9
_HOUR_S = 3600.0
_RATES = ("samples_per_s", "tokens_per_s", "mfu")
_COSTS = ("hours_per_billion_tokens", "price_per_billion_tokens")


def throughput(
    step_time_s: float,
    num_samples: int,
    sequence_length: int | None,
    ideal_s: float,
    price_per_hour: float | None,
) -> dict[str, Any]:
    """The members for a step.

    Args:
        num_samples: the global batch.
        ideal_s: seconds of the model's FLOPs at the devices' peaks.
        price_per_hour: of the whole cluster, in US dollars.
    """
    tokens_per_s = None if sequence_length is None else num_samples * sequence_length / step_time_s
    hours = None if tokens_per_s is None else _BILLION / tokens_per_s / _HOUR_S
    return {
        "samples_per_s": num_samples / step_time_s,
        "sequence_length": sequence_length,
        "tokens_per_s": tokens_per_s,
        "mfu": ideal_s / step_time_s,
        "hours_per_billion_tokens": hours,
        "price_per_billion_tokens": None if hours is None or price_per_hour is None else hours * price_per_hour,
    }


def at_step_time(document: Mapping[str, Any], step_time_s: float) -> dict[str, Any]:
    """The members of a plan document that change with the step time, for another one; empty for older documents."""
    ratio = step_time_s / document["step_time_s"]
    known = {name: document.get(name) for name in (*_RATES, *_COSTS)}
    return {
        name: value / ratio if name in _RATES else value * ratio for name, value in known.items() if value is not None
    }
