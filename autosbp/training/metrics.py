"""Metrics of a training run: their measurement, and writers for console, JSON lines and TensorBoard."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import torch

from autosbp.errors import InputError
from autosbp.executor.communication_wait import CommunicationWait
from autosbp.launch.json_gather import gather_json
from autosbp.plan.throughput import at_step_time
from autosbp.utils.formatting import count, num_bytes, seconds

Metrics = Mapping[str, float]
"""Numbers of a step by name; the unit is in the name."""


class StepMeter:
    """Measures the steps of this rank between two reports.

    Args:
        device: device of the rank.
        plan: the plan's document, from which model FLOPs and tokens per step are taken.
    """

    def __init__(self, device: torch.device, plan: Mapping[str, Any]) -> None:
        self._device, self._plan = device, plan
        self._wait = CommunicationWait(device)
        self._begin_s, self._steps = time.perf_counter(), 0
        self._wait.start()

    def begin(self) -> None:
        """Begin an interval; time before it does not count."""
        self._wait.take_s()
        self._begin_s, self._steps = time.perf_counter(), 0

    def count(self) -> None:
        """Count a step."""
        self._steps += 1

    def report(self) -> Metrics:
        """Metrics per step since ``begin``. All ranks have to call it.

        ``step_time_s`` and ``memory_bytes`` (peak) are maxima over all ranks, ``exposed_comm_s`` is the mean.
        """
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        time_s = (time.perf_counter() - self._begin_s) / max(1, self._steps)
        own = [time_s, self._wait.take_s() / max(1, self._steps), float(_peak_bytes(self._device))]
        everyone = gather_json(own, self._device)
        slowest, memory = max(each[0] for each in everyone), max(each[2] for each in everyone)
        rates = at_step_time(self._plan, slowest)
        found = {
            "step_time_s": slowest,
            "exposed_comm_s": sum(each[1] for each in everyone) / len(everyone),
            "memory_bytes": memory,
        }
        return found | {name: rates[name] for name in ("samples_per_s", "tokens_per_s", "mfu") if name in rates}

    def stop(self) -> None:
        """Stop counting waits."""
        self._wait.stop()


def _peak_bytes(device: torch.device) -> int:
    """Peak memory in bytes: of tensors on a GPU, of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Writer(Protocol):
    """Destination of a run's metrics; called on rank 0."""

    def write(self, step: int, metrics: Metrics) -> None:
        """Write the metrics of a step."""

    def close(self) -> None:
        """Write what is left."""


class ConsoleWriter:
    """Prints a line for each report, with progress and remaining time.

    Args:
        say: prints a line.
        steps: number of steps of the whole run.
    """

    def __init__(self, say: Callable[[str], None], steps: int) -> None:
        self._say, self._steps = say, steps

    def write(self, step: int, metrics: Metrics) -> None:
        parts = [f"step {step}/{self._steps} ({100 * step // self._steps} %)"]
        parts += [text(metrics[name]) for name, text in _SHOWN.items() if name in metrics]
        if "step_time_s" in metrics and step < self._steps:
            parts.append(f"{_duration((self._steps - step) * metrics['step_time_s'])} left")
        self._say("  ".join(parts))

    def close(self) -> None:
        """Nothing is left."""


_SHOWN: Mapping[str, Callable[[float], str]] = {
    "loss": lambda value: f"loss {value:.4f}",
    "evaluation_loss": lambda value: f"evaluation loss {value:.4f}",
    "gradient_norm": lambda value: f"gradient norm {value:.3g}",
    "learning_rate": lambda value: f"lr {value:.3g}",
    "loss_scale": lambda value: f"loss scale {value:g}",
    "step_time_s": lambda value: f"{seconds(value)} a step",
    "tokens_per_s": lambda value: f"{count(value).strip()} tokens/s",
    "mfu": lambda value: f"MFU {100 * value:.1f} %",
    "exposed_comm_s": lambda value: f"exposed {seconds(value)}",
    "memory_bytes": num_bytes,
}


def _duration(time_s: float) -> str:
    minutes, left = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}"


class JsonLinesWriter:
    """Appends a JSON object for each report to a file; numbers that are not finite become null.

    Args:
        path: the file. If the run resumes, lines up to ``step`` are kept.
    """

    def __init__(self, path: Path, step: int) -> None:
        kept = [line for line in _lines(path) if json.loads(line)["step"] <= step]
        path.write_text("".join(f"{line}\n" for line in kept))
        self._file = path.open("a", buffering=1)

    def write(self, step: int, metrics: Metrics) -> None:
        plain = {name: value if isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps({"step": step, **plain}) + "\n")

    def close(self) -> None:
        self._file.close()


def _lines(path: Path) -> Sequence[str]:
    """Complete lines of a file; a killed run may leave an incomplete last line."""
    text = path.read_text() if path.is_file() else ""
    return text[: text.rfind("\n") + 1].splitlines()


class TensorBoardWriter:
    """Writes TensorBoard event files with torch's ``SummaryWriter``.

    Raises:
        InputError: the package tensorboard is not installed.
    """

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as missing:
            raise InputError("tensorboard", True, "it needs the package: pip install tensorboard") from missing
        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
