"""ONNX models, parsed in a separate process with limits.

The process has little memory and processor time, and cannot open files, so that only it is exposed to an untrusted
file. External data is never read. ``read_onnx`` returns a skeleton of the model: its ops and shapes, without weights.
``capture_onnx`` turns it into a training graph.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from autosbp.errors import InputError, UnsupportedError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.onnx._parser_process import EXIT_NO_ONNX_PACKAGE
from autosbp.graph.onnx._skeleton import Skeleton
from autosbp.graph.onnx_files import MAX_FILE_BYTES, model_name, read_content

MEMORY_BYTES = 768 * 2**20
"""Private memory of the process: about twice the largest file, plus the needs of Python and the parser."""
CPU_S = 30
_WALL_S = 300.0
_MAX_OUTPUT_BYTES = 64 * 2**20

__all__ = ["MAX_FILE_BYTES", "Skeleton", "capture_onnx", "model_name", "read_content", "read_onnx", "read_onnx_file"]


def capture_onnx(skeleton: Skeleton, name: str | None = None) -> LogicalGraph:
    """Capture the training graph of an ONNX model (needs torch).

    A first output that is a float scalar is the loss. Otherwise a loss is added after the first output: the cross
    entropy of its last dim with an input ``labels`` if it has 2 or 3 dims and more than one class, else the mean
    squared difference from an input ``target``. Dim 0 of every input is the batch. Float tensors of the file with at
    least one dim are trained parameters; batch norm uses the statistics of the batch.

    Raises:
        InputError: for a model that breaks a rule of ONNX, an unsupported op, or an unknown dim.
        UnsupportedError: for a model that cannot be captured, such as one that is valid for a single batch size only.
    """
    from autosbp.graph.onnx._capture import capture_skeleton

    return capture_skeleton(skeleton, name or skeleton.name)


def read_onnx_file(path: Path) -> Skeleton:
    """The skeleton of a file; see ``read_onnx``."""
    try:
        file = path.open("rb")
        num_bytes = path.stat().st_size
    except (OSError, ValueError) as error:
        raise InputError("model", str(path), f"expected a readable file ({error})") from None
    with file:
        return _read(file, num_bytes, str(path))


def read_onnx(data: bytes, shown: str = "...") -> Skeleton:
    """The skeleton of a model, which holds only supported ops.

    Args:
        data: content of the ONNX file.
        shown: name of the file in error messages.

    Raises:
        InputError: for data that is too large, not ONNX, has external data or an unknown op, or exceeds a limit.
        UnsupportedError: without the package onnx.
    """
    with TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return _read(file, len(data), shown)


def _read(file: IO[bytes], num_bytes: int, shown: str) -> Skeleton:
    if num_bytes > MAX_FILE_BYTES:
        raise InputError("model", shown, f"at most {MAX_FILE_BYTES} bytes are read")
    status, said = _run(
        [sys.executable, "-P", "-m", f"{__name__}._parser_process", str(MEMORY_BYTES), str(CPU_S)], file
    )
    if status == EXIT_NO_ONNX_PACKAGE:
        raise UnsupportedError("reading an ONNX file requires the extra onnx: pip install 'autosbp[onnx]'")
    if status != 0 or len(said) > _MAX_OUTPUT_BYTES:
        raise InputError("model", shown, _failure_reason(status))
    document: Mapping[str, Any] = json.loads(said)
    if "limit" in document:
        value = shown if document["value"] == "..." else document["value"]
        raise InputError(f"model.{document['field']}", value, document["limit"])
    return Skeleton.from_dict(document)


def _run(command: list[str], file: IO[bytes]) -> tuple[int, bytes]:
    """Exit status and output of the process; it is killed if it takes too long or writes too much."""
    with subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        timer = threading.Timer(_WALL_S, process.kill)
        timer.start()
        try:
            said = process.stdout.read(_MAX_OUTPUT_BYTES + 1)
            if len(said) > _MAX_OUTPUT_BYTES:
                process.kill()
            return process.wait(), said
        finally:
            timer.cancel()


def _failure_reason(status: int) -> str:
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"parsing exceeded {CPU_S} s of CPU time or {MEMORY_BYTES} bytes of memory"
    return f"expected an ONNX file; the parser crashed (status {status})"
