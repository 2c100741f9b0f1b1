"""Gradients of B parameters in buckets."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import torch

from autosbp.executor.gradient_buckets import GradientBuckets
from autosbp.program.gradient_buckets import Bucket


def test_buckets_are_freed_with_their_owner() -> None:
    # Autograd holds the hooks of a parameter where no collector of garbage looks: trainers that were dropped kept their memory.
    parameter = torch.ones(3, requires_grad=True)
    bucket = Bucket(("w",), (0,), 0)
    flow: Any = SimpleNamespace(buckets=[bucket], sources={"w": 2})
    runtime: Any = SimpleNamespace()
    buckets = GradientBuckets(flow, {"w": parameter}, runtime)
    buckets.schedule.open = True
    (parameter * 2).sum().backward()  # type: ignore[no-untyped-call]
    assert buckets.schedule._missing == [1]  # the hook told of one of two sources
    held = weakref.ref(parameter), weakref.ref(buckets)
    del parameter, buckets
    gc.collect()
    assert [each() for each in held] == [None, None]
