"""The form that asks for a plan: what there is to choose from, and the requests that a filled-in form stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from autosbp.cluster import presets
from autosbp.errors import InputError
from autosbp.graph.onnx import MAX_FILE_BYTES
from autosbp.schedules import SCHEDULES
from autosbp.search import SEARCHERS
from autosbp.zoo.catalog import read_catalog
from service.body import parse
from service.web.forms import Form, Upload

_GIB = 2**30
ONNX = "onnx"
"""The field of the ONNX file, and the source that it is."""
AGAIN = "again"
"""The field that names a capture which failed: the form is shown again as it was."""
MOST_CONFIG_BYTES = 2**20
"""Of a configuration, typed or as a file, which browsers show as text."""
_ROOM_BYTES = 2**16
_FEW_DEVICES = ("local", "emulated")


@dataclass(frozen=True, slots=True)
class Choice:
    """One entry of a list, with what it says of itself."""

    value: str
    words: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What a form asks for: bodies for the services, or an ONNX file; ``model_id``, ``cluster_id`` where stored ones were
    chosen."""

    model: Mapping[str, Any] | None
    onnx: Upload | None
    model_id: str | None
    cluster: Mapping[str, Any] | None
    cluster_id: str | None
    calibration_id: str | None
    options: Mapping[str, Any]


@cache
def zoo() -> tuple[Choice, ...]:
    """Every model of the zoo."""
    return tuple(Choice(name, name) for name in sorted(read_catalog()))


@cache
def cluster_presets() -> tuple[Choice, ...]:
    """Every preset, with its devices; those for this machine first."""
    known = presets()["clusters"]
    names = sorted(known, key=lambda name: (name not in _FEW_DEVICES, name))
    return tuple(Choice(name, f"{name}: {_described(known[name])}") for name in names)


def searchers() -> tuple[str, ...]:
    """Names of the searchers."""
    return tuple(SEARCHERS)


def schedules() -> tuple[str, ...]:
    """Names of the pipeline schedules."""
    return tuple(SCHEDULES)


def most_file_bytes(max_body_bytes: int) -> int:
    """How large a file may be so that the form around it is no larger than a body may be."""
    return min(max(max_body_bytes - _ROOM_BYTES, max_body_bytes // 2), MAX_FILE_BYTES)


def is_of_model(problem: Mapping[str, Any]) -> bool:
    """Whether a problem is of the ONNX file."""
    field = str(problem.get("field", ""))
    return field in (ONNX, "model") or field.startswith("model.")


def _described(preset: Mapping[str, Any]) -> str:
    if "groups" in preset:
        return " and ".join(f"{group['name']}: {_described(group)}" for group in preset["groups"])
    device = preset["device"] if isinstance(preset["device"], str) else preset["device"]["name"]
    return f"{device}, {' × '.join(str(level['count']) for level in preset['levels'])} by default"


def asked(form: Form) -> Asked:
    """``InputError`` names the field of the form."""
    onnx = _onnx(form) if form.text("source") == ONNX else None
    model_id, model = (None, None) if onnx else _model(form)
    cluster_id, cluster = _cluster(form)
    return Asked(model, onnx, model_id, cluster, cluster_id, form.text("calibration_id"), _options(form))


def carried(form: Form) -> dict[str, str]:
    """The fields that a form repeats when the capture of its model is over."""
    return {
        name: value
        for name, value in form.fields.items()
        if name not in ("source", "hf_config", "zoo", "model_id", AGAIN)
    }


def once_more(form: Form, captured: Mapping[str, Any]) -> Form:
    """The form as it was before the capture of its model: what was ``captured`` says where that was from."""
    fields = {name: value for name, value in form.fields.items() if name not in (AGAIN, "model_id")}
    if "onnx" in captured:
        return Form({**fields, "source": ONNX})
    return Form({**fields, "source": "config", "hf_config": json.dumps(captured.get("hf_config"), indent=2)})


def _model(form: Form) -> tuple[str | None, dict[str, Any] | None]:
    source = form.text("source") or "zoo"
    if source == "stored":
        return _needed(form, "model_id", "a stored model"), None
    if source == "zoo":
        return None, {"zoo": _needed(form, "zoo", "a model of the zoo")}
    if source != "config":
        raise InputError("source", source, "zoo, config, onnx or stored is expected")
    config = parse(_config(form), what="hf_config")
    if not isinstance(config, dict):
        raise InputError("hf_config", json.dumps(config)[:100], "a JSON object is expected")
    sizes = {name: form.integer(name) for name in ("seq_len", "image_size")}
    return None, {"hf_config": config, **{name: size for name, size in sizes.items() if size is not None}}


def _onnx(form: Form) -> Upload:
    if ONNX not in form.files:
        raise InputError(ONNX, None, "an ONNX file is expected: choose one")
    return form.files[ONNX]


def _config(form: Form) -> bytes:
    typed = (form.text("hf_config") or "").encode()
    if len(typed) > MOST_CONFIG_BYTES:
        limit = f"at most {MOST_CONFIG_BYTES} bytes are expected"
        raise InputError("hf_config", f"{len(typed)} bytes", limit)
    return typed or _config_file(form).encode()


def _config_file(form: Form) -> str:
    """The text of the file; browsers that run scripts have put it into the field."""
    file = form.files.get("hf_config_file")
    if file is None:
        raise InputError("hf_config", None, "the content of a config.json is expected")
    if len(file.content) > MOST_CONFIG_BYTES:
        value, limit = f"{file.name}, {len(file.content)} bytes", f"at most {MOST_CONFIG_BYTES} bytes are expected"
        raise InputError("hf_config", value, limit)
    try:
        return file.content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError("hf_config", file.name, f"JSON in UTF-8 is expected ({error})") from None


def _cluster(form: Form) -> tuple[str | None, dict[str, Any] | None]:
    if form.text("where") == "stored":
        return _needed(form, "cluster_id", "a stored cluster"), None
    preset, nodes, devices = _needed(form, "preset", "a preset"), form.integer("nodes"), form.integer("devices")
    if devices is not None and nodes is None:
        raise InputError("nodes", None, "the number of nodes is expected where that of devices is given")
    counts = "" if nodes is None else f":{nodes}" if devices is None else f":{nodes}x{devices}"
    return None, {"preset": f"{preset}{counts}"}


def _needed(form: Form, name: str, what: str) -> str:
    given = form.text(name)
    if given is None:
        raise InputError(name, None, f"{what} is expected")
    return given


def _options(form: Form) -> dict[str, Any]:
    memory = form.number("memory_gib")
    found: dict[str, Any] = {
        "global_batch": form.integer("global_batch"),
        "micro_batch": form.integer("micro_batch"),
        "time_limit_s": form.number("time_limit_s"),
        "searcher": form.text("searcher"),
        "optimizer": form.text("optimizer"),
        "memory_limit_bytes": None if memory is None else round(memory * _GIB),
        "stages": form.integer("stages"),
        "schedules": [schedule] if (schedule := form.text("schedule")) else None,
        "storage": form.text("storage"),
        "recompute": form.integer("recompute"),
        "data_parallel": form.integer("data_parallel"),
        "tensor_parallel": form.integer("tensor_parallel"),
    }
    return {name: value for name, value in found.items() if value is not None}
