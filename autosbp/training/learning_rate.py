"""Learning rate schedule: linear warm-up, then constant, linear or cosine decay until the last step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import cos, pi

_FINAL = 0.1
"""Share of the peak at the last step of a falling course, as in GPT-3 (Brown et al. 2020, appendix B)."""
COURSES: Mapping[str, Callable[[float], float]] = {
    "cosine": lambda done: _FINAL + (1 - _FINAL) * (1 + cos(pi * done)) / 2,
    "linear": lambda done: 1 - (1 - _FINAL) * done,
    "constant": lambda _: 1.0,
}
"""Factor of the peak by the share of the steps after the warm-up that are done."""


def learning_rate(step: int, *, peak: float, course: str, warmup: int, steps: int) -> float:
    """Learning rate of a step.

    Args:
        step: number of the step, from 1.
        peak: learning rate after the warm-up.
        course: one of ``COURSES``.
        warmup: number of warm-up steps, in which the rate grows linearly.
        steps: number of steps of the whole run.
    """
    if step <= warmup:
        return peak * step / warmup
    return peak * COURSES[course]((step - warmup - 1) / max(1, steps - warmup - 1))
