"""Other training frameworks: the strategies that each of them can run, as a search space and a check."""

from __future__ import annotations

from collections.abc import Mapping

from autosbp.trainers._accelerate import ACCELERATE
from autosbp.trainers._base import Constraints, ExpressedPlan, Trainer
from autosbp.trainers._deepspeed import DEEPSPEED
from autosbp.trainers._megatron import MEGATRON
from autosbp.trainers._torchtitan import TORCHTITAN

__all__ = ["TRAINERS", "Constraints", "ExpressedPlan", "Trainer"]

TRAINERS: Mapping[str, Trainer] = {each.name: each for each in (ACCELERATE, DEEPSPEED, MEGATRON, TORCHTITAN)}
"""Trainers by the name used in ``autosbp export --to`` and ``autosbp plan --for``."""
