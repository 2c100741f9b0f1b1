"""ONNX files as they are before anything of them is parsed: their bytes, and the name that a model gets from its file's."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from autosbp.errors import InputError

MAX_FILE_BYTES = 256 * 2**20
_MOST_NAME = 64


def read_content(path: Path) -> bytes:
    """The bytes of a file; ``InputError`` where it cannot be read, is empty or has more than ``MAX_FILE_BYTES``."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError("model", str(path), f"a readable file is expected ({error})") from None
    if not data:
        raise InputError("model.file", str(path), "an ONNX file is expected; this one is empty")
    if len(data) > MAX_FILE_BYTES:
        raise InputError("model", str(path), f"at most {MAX_FILE_BYTES} bytes are read")
    return data


def model_name(file: str) -> str | None:
    """The name of the model in a file of this name: its stem in letters, digits and ``._-``, of which dashes stand for all
    else, at most 64. None where nothing is left. A graph's hash has its name in it, so wherever a file is read, on the command
    line or by a service, its model is called the same."""
    stem = PurePosixPath(file.replace("\\", "/")).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("._-")[:_MOST_NAME] or None
