"""Cache of discovered layouts on disk: ``$XDG_CACHE_HOME/autosbp/discovery``, one JSON file per call.

A file's name is the hash of the op's schema or of its body, the call's attributes, the shapes and dtypes of its stand-ins, and
torch's version. Files are written atomically. An unreadable one is ignored with a warning, and rewritten. The reader proves the
layouts again, because an op may change without its schema.
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
from autosbp.graph.discovered_rules import DiscoveredRule, read_rule, rule_to_dict
from autosbp.utils.json_io import Fields, canonical, digest, loads

SCHEMA = "autosbp.discovery/2"
MAX_FILE_BYTES = 2**20


def cache_dir() -> Path:
    """The user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "autosbp" / "discovery"


def key_of(*calls: Call) -> dict[str, Any] | None:
    """The key of these calls of one op; None for a function of Python, which neither has a schema nor a hash of its body."""
    op = calls[0].op
    name = str(op._schema) if isinstance(op, torch._ops.OpOverload) else getattr(op, "function_name", "")
    if not name:
        return None
    return {
        "op": name,
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


def read_cached(key: dict[str, Any]) -> DiscoveredRule | None:
    """The rule stored under ``key``, or None without a readable one."""
    path = _path(key)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None
    try:
        if len(text) > MAX_FILE_BYTES:
            raise InputError(str(path), len(text), f"at most {MAX_FILE_BYTES} bytes are allowed")
        fields = Fields(loads(text, str(path)), "", ("schema", "key", "rule"), SCHEMA)
        if fields.raw("key") != key:
            raise InputError("key", "...", "does not match the hash in the file name")
        return read_rule(fields.raw("rule"), "rule")
    except InputError as error:
        warnings.warn(f"ignoring {path}, which will be rewritten: {error}", RuntimeWarning, stacklevel=2)
        return None


def write_cached(key: dict[str, Any], rule: DiscoveredRule) -> None:
    """Store ``rule``; a folder that cannot be written is no error, since the cache only saves time."""
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
