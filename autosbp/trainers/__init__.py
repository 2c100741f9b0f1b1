"""Other trainers as search spaces: what each can express, and whether a strategy is among it."""

from __future__ import annotations

from collections.abc import Mapping

from autosbp.trainers._accelerate import ACCELERATE
from autosbp.trainers._base import Constraints, ExpressedPlan, Trainer
from autosbp.trainers._deepspeed import DEEPSPEED
from autosbp.trainers._megatron import MEGATRON
from autosbp.trainers._torchtitan import TORCHTITAN

__all__ = ["TRAINERS", "Constraints", "ExpressedPlan", "Trainer"]

TRAINERS: Mapping[str, Trainer] = {each.name: each for each in (ACCELERATE, DEEPSPEED, MEGATRON, TORCHTITAN)}
"""By the name that ``autosbp export --to`` and ``autosbp plan --for`` take."""
