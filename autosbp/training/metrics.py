"""Metrics of a training run: what is measured, and where it is written to."""

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
    """Measures steps between two reports on this rank.

    Args:
        device: of the rank.
        plan: the plan's document, whose model FLOPs and tokens are counted.
    """

    def __init__(self, device: torch.device, plan: Mapping[str, Any]) -> None:
        self._device, self._plan = device, plan
        self._wait = CommunicationWait(device)
        self._begin_s, self._steps = time.perf_counter(), 0
        self._wait.start()

    def begin(self) -> None:
        """Begin an interval: what took time before it does not count."""
        self._wait.take_s()
        self._begin_s, self._steps = time.perf_counter(), 0

    def count(self) -> None:
        """Count a step."""
        self._steps += 1

    def report(self) -> Metrics:
        """Metrics per step since ``begin``; a collective of all ranks.

        ``step_time_s`` and ``memory_bytes`` (peak) are those of the slowest and the fullest rank,
        ``exposed_comm_s`` is the mean of all.
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
    """Most bytes of tensors on a GPU, of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Writer(Protocol):
    """Where the metrics of a run go; called on rank 0."""

    def write(self, step: int, metrics: Metrics) -> None:
        """Write the metrics of a step."""

    def close(self) -> None:
        """Write what is left."""


class ConsoleWriter:
    """One line for people each time, with progress and the time that is left.

    Args:
        say: prints a line.
        steps: of the whole run.
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
    """One JSON object for each step in a file; a number that is not finite is null.

    Args:
        path: of the file. Of a run that goes on, the lines up to ``step`` stay.
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
    """The complete lines of a file: a killed run may leave a part of one."""
    text = path.read_text() if path.is_file() else ""
    return text[: text.rfind("\n") + 1].splitlines()


class TensorBoardWriter:
    """Curves for TensorBoard, by torch's own writer.

    Raises:
        InputError: the package tensorboard is missing.
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
