"""Imported by the ranks of a trial: training on one device runs out of memory, as torch tells it or as the kernel does."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

import torch

from autosbp.executor.single_device_reference import SingleDeviceReference

HOW = "FAILING_REFERENCE"


def _out_of_memory(self: SingleDeviceReference, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:  # noqa: ARG001
    if os.environ[HOW] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.empty(2**50)


SingleDeviceReference.step = _out_of_memory  # type: ignore[method-assign]
