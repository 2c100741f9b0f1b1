"""Options, timed ops and refusals in words and units, as people read them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from autosbp.service.web.number_format import number, seconds, share, title
from autosbp.service.web.presenters.page_parts import Fact
from autosbp.utils.formatting import num_bytes

_NAMES = {
    "global_batch": "Samples per step",
    "micro_batch": "Samples per microbatch",
    "time_limit_s": "Time limit",
    "memory_limit_bytes": "Memory limit of a device",
    "gap_tolerance": "Gap tolerance",
    "pins": "Fixed layouts",
    "stages": "Pipeline stages",
    "storage": "Parameter storage",
    "recompute": "Recomputation",
    "offload": "Optimizer state in host memory",
    "bucket_bytes": "Largest gradient bucket",
    "stage_of": "Fixed stages",
    "data_parallel": "Data-parallel degree",
    "tensor_parallel": "Tensor-parallel degree",
}
_STORAGES = {"as_used": "as used, no ZeRO", "step": "gathered once a step (ZeRO-2)", "use": "gathered per use (ZeRO-3)"}
_BYTES = re.compile(r"\b(\w+_bytes) ?= ?(\d+)")
_NEEDED = re.compile(r"\b(at least )?(\d+) is (required|sufficient)")
_HUNDREDTHS_OF_GIB = 2**30 / 100


def option_facts(options: Mapping[str, Any]) -> tuple[Fact, ...]:
    """The options of a search that have a value."""
    return tuple(
        Fact(option_name(name), option_words(name, value))
        for name, value in options.items()
        if value not in (None, False, {}, [], "")
        or (name, value) == ("recompute", 0)  # 0 is no default: it forbids recomputation
    )


def option_name(name: str) -> str:
    """Name of an option or of another choice."""
    return _NAMES.get(name, title(name))


def option_words(name: str, value: Any) -> str:
    """Value of an option or of another choice, with its unit."""
    if value is None:
        return "none"
    if name == "storage":
        return _STORAGES.get(value, str(value))
    if name == "recompute" and isinstance(value, int):
        return f"every {number(value)} blocks" if value > 1 else "every block" if value else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {option_words('', each)}" for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(option_words("", each) for each in value)
    if isinstance(value, (int, float)):
        return _amount(name, value)
    return str(value).replace("_", " ") if name in ("baselines", "schedules", "searcher") else str(value)


def _amount(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return num_bytes(value)
    if name.endswith("_s"):
        return seconds(value)
    if name == "gap_tolerance":
        return share(value, 2)
    return str(value) if name == "seed" else f"{value:,}"


def op_words(key: str) -> str:
    """A timed op with the shapes and dtypes of its tensors, from its key (``autosbp.costmodel.compute.op_key``)."""
    try:
        call = json.loads(key)
        name = call["op"]
    except (ValueError, TypeError, KeyError):
        return key
    tensors = list(_tensors([call.get("args", []), call.get("kwargs", {})]))
    shapes = ", ".join(" × ".join(map(str, one["t"])) or "scalar" for one in tensors)
    dtypes = ", ".join(dict.fromkeys(str(one["d"]) for one in tensors))
    short = name.split(".")[1] if "." in name else name
    return f"{short} of {shapes} ({dtypes})" if tensors else short


def _tensors(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        return [value] if {"t", "d"} <= value.keys() else _tensors(list(value.values()))
    return [found for each in value for found in _tensors(each)] if isinstance(value, list) else []


def refusal_words(text: str) -> str:
    """The reason of a refusal with sizes in GiB in place of ``memory_limit_bytes = 85520809984``."""
    if _BYTES.search(text) is None:
        return text
    named = _BYTES.sub(lambda found: f"{option_name(found[1]).lower()} {num_bytes(int(found[2]))}", text)
    named = named.removeprefix("infeasible: ")
    return _NEEDED.sub(
        lambda found: f"{found[1] or ''}{_enough(int(found[2]))} is {found[3]}", named[:1].upper() + named[1:]
    )


def _enough(size: int) -> str:
    """A size that is not rounded down, so that it may be entered as it is shown."""
    if size < _HUNDREDTHS_OF_GIB:
        return num_bytes(size)
    return f"{math.ceil(size / _HUNDREDTHS_OF_GIB) / 100:,.2f} GiB"
