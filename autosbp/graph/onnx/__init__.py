"""ONNX models, parsed in a process of its own with little memory, processor time and no right to open a file: whatever is in a
file that came from elsewhere, it is that process which meets it. External data is never read.

``read_onnx`` gives a skeleton of the model: its ops and shapes, without weights. ``capture_onnx`` makes a training graph of it.
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
from autosbp.graph.onnx._child import NO_PACKAGE
from autosbp.graph.onnx._files import MAX_FILE_BYTES, model_name, read_content
from autosbp.graph.onnx._skeleton import Skeleton

MEMORY_BYTES = 768 * 2**20
"""Private memory of the process: about twice the largest file, and what Python and the parser take."""
CPU_S = 30
_WALL_S = 300.0
_MOST_SAID = 64 * 2**20

__all__ = ["MAX_FILE_BYTES", "Skeleton", "capture_onnx", "model_name", "read_content", "read_onnx", "read_onnx_file"]


def capture_onnx(skeleton: Skeleton, name: str | None = None) -> LogicalGraph:
    """The training graph of an ONNX model (needs torch).

    A first output that is a float scalar is the loss. Otherwise one is put behind the first output: cross entropy of its last
    dim against an input ``labels`` where it has 2 or 3 dims and more than one class, the mean squared difference to an input
    ``target`` else. Dim 0 of every input is the batch. Float tensors of the file with at least one dim are trained parameters;
    batch norm uses the statistics of the batch.

    Raises:
        InputError: for a model that breaks a rule of ONNX, an op that is not read, or a dim that is not known.
        UnsupportedError: for a model that cannot be captured, such as one that holds for a single batch size.
    """
    from autosbp.graph.onnx._capture import captured

    return captured(skeleton, name or skeleton.name)


def read_onnx_file(path: Path) -> Skeleton:
    """The skeleton of a file; see ``read_onnx``."""
    try:
        file = path.open("rb")
        num_bytes = path.stat().st_size
    except (OSError, ValueError) as error:
        raise InputError("model", str(path), f"a readable file is expected ({error})") from None
    with file:
        return _read(file, num_bytes, str(path))


def read_onnx(data: bytes, shown: str = "...") -> Skeleton:
    """The skeleton of a model in ``data``, which errors call ``shown``; every op of it is one that is read.

    Raises:
        InputError: for what is too large, no ONNX, has external data or an unknown op, or needs more than a limit.
        UnsupportedError: without the package onnx.
    """
    with TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return _read(file, len(data), shown)


def _read(file: IO[bytes], num_bytes: int, shown: str) -> Skeleton:
    if num_bytes > MAX_FILE_BYTES:
        raise InputError("model", shown, f"at most {MAX_FILE_BYTES} bytes are read")
    status, said = _run([sys.executable, "-P", "-m", f"{__name__}._child", str(MEMORY_BYTES), str(CPU_S)], file)
    if status == NO_PACKAGE:
        raise UnsupportedError("reading an ONNX file needs the extra: pip install 'autosbp[onnx]'")
    if status != 0 or len(said) > _MOST_SAID:
        raise InputError("model", shown, _why(status))
    document: Mapping[str, Any] = json.loads(said)
    if "limit" in document:
        value = shown if document["value"] == "..." else document["value"]
        raise InputError(f"model.{document['field']}", value, document["limit"])
    return Skeleton.from_dict(document)


def _run(command: list[str], file: IO[bytes]) -> tuple[int, bytes]:
    """Exit status and output of the process, which is ended when it takes too long or says too much."""
    with subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        timer = threading.Timer(_WALL_S, process.kill)
        timer.start()
        try:
            said = process.stdout.read(_MOST_SAID + 1)
            if len(said) > _MOST_SAID:
                process.kill()
            return process.wait(), said
        finally:
            timer.cancel()


def _why(status: int) -> str:
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"a file that is parsed in {CPU_S} s of processor time and {MEMORY_BYTES} bytes of memory is expected"
    return f"an ONNX file is expected; its parser did not survive this one (status {status})"
