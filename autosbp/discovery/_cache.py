"""Layouts found before, on disk: ``$XDG_CACHE_HOME/autosbp/discovery``, one JSON file for each call.

A file's name is the hash of the op's schema, the call's attributes, the shapes and dtypes of its stand-ins, and torch's
version. Files are written whole or not at all. One that cannot be read is left out with a warning, and written anew.
What is read is proved again by who reads it, for an op may have changed under its schema.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from autosbp.discovery._call import Call, Slot
from autosbp.errors import InputError
from autosbp.graph.found import FoundRule, read_rule, rule_to_dict
from autosbp.jsonio import Fields, canonical, digest, loads

SCHEMA = "autosbp.discovery/2"
MAX_FILE_BYTES = 2**20


def cache_dir() -> Path:
    """The user's folder of found layouts."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "autosbp" / "discovery"


def key_of(*calls: Call) -> dict[str, Any] | None:
    """What identifies these calls of one op; None for a function, which has no schema."""
    if not isinstance(calls[0].op, torch._ops.OpOverload):
        return None
    return {
        "op": str(calls[0].op._schema),
        "torch": torch.__version__,
        "calls": [
            {
                "args": _plain(call.args),
                "kwargs": {word: _plain(arg) for word, arg in call.kwargs.items()},
                "tensors": [
                    {"shape": list(spec.shape), "dtype": str(spec.dtype), "tracked": spec.tracked, "high": spec.high}
                    for spec in call.tensors
                ],
            }
            for call in calls
        ],
    }


def _plain(arg: Any) -> Any:
    if isinstance(arg, tuple):
        return [_plain(item) for item in arg]
    if isinstance(arg, Slot):
        return {"tensor": arg.index}
    return arg if arg is None or isinstance(arg, (bool, int, str)) else repr(arg)


def read_cached(key: dict[str, Any]) -> FoundRule | None:
    """The rule stored under ``key``, if there is one that can be read."""
    path = _path(key)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None
    try:
        if len(text) > MAX_FILE_BYTES:
            raise InputError(str(path), len(text), f"at most {MAX_FILE_BYTES} bytes are read")
        fields = Fields(loads(text, str(path)), "", ("schema", "key", "rule"), SCHEMA)
        if fields.raw("key") != key:
            raise InputError("key", "...", "the key that the file's name is the hash of is expected")
        return read_rule(fields.raw("rule"), "rule")
    except InputError as error:
        warnings.warn(f"{path} is ignored and will be written anew: {error}", RuntimeWarning, stacklevel=2)
        return None


def write_cached(key: dict[str, Any], rule: FoundRule) -> None:
    """Store ``rule``; a folder that cannot be written is no error, for the cache saves time only."""
    path = _path(key)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        draft = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(canonical({"schema": SCHEMA, "key": key, "rule": rule_to_dict(rule)}))
            draft.replace(path)
        finally:
            with suppress(OSError):
                draft.unlink()


def _path(key: dict[str, Any]) -> Path:
    return cache_dir() / f"{digest(key, 32)}.json"
