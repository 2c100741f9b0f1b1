"""ONNX files before parsing: their bytes, and the model name derived from the file name."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from autosbp.errors import InputError

MAX_FILE_BYTES = 256 * 2**20
_MOST_NAME = 64


def read_content(path: Path) -> bytes:
    """The bytes of a file; raise ``InputError`` if it is unreadable, empty or larger than ``MAX_FILE_BYTES``."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError("model", str(path), f"expected a readable file ({error})") from None
    if not data:
        raise InputError("model.file", str(path), "expected an ONNX file; this one is empty")
    if len(data) > MAX_FILE_BYTES:
        raise InputError("model", str(path), f"at most {MAX_FILE_BYTES} bytes are read")
    return data


def model_name(file: str) -> str | None:
    """The model name for a file name; None if nothing is left.

    It is the file's stem with every run of characters other than letters, digits and ``._-`` replaced by a dash, at
    most 64 characters. A graph's hash includes its name, so the command line and the service must name the same file's
    model alike.
    """
    stem = PurePosixPath(file.replace("\\", "/")).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("._-")[:_MOST_NAME] or None
