"""The planning form: its choices, and the requests that a filled-in form stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from autosbp.cluster.spec import presets
from autosbp.errors import InputError
from autosbp.graph.onnx import MAX_FILE_BYTES
from autosbp.graph.precision import PRECISIONS
from autosbp.plan.schedules import SCHEDULES
from autosbp.search import SEARCHERS
from autosbp.service.strict_json import parse
from autosbp.service.web.forms import Form, Upload
from autosbp.zoo.catalog import read_catalog

_GIB = 2**30
ONNX = "onnx"
"""Name of the ONNX file's field, and of that model source."""
MOST_CONFIG_BYTES = 2**20
"""Maximum size of a configuration, typed or in a file; browsers display it as text."""
_FORM_OVERHEAD_BYTES = 2**16
_LOCAL_PRESETS = ("local", "emulated")
_RESTORED = (
    *("source", "hf_config", "seq_len", "image_size", "model_id", "where", "cluster_id", "calibration_id"),
    *("global_batch", "micro_batch", "time_limit_s", "searcher", "optimizer", "precision", "memory_gib", "stages"),
    *("schedule", "storage", "recompute", "data_parallel", "tensor_parallel"),
)
"""Fields of the form that a capture's payload tells."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An entry of a list, with its description."""

    value: str
    words: str


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The request of a form: bodies for the services, or an ONNX file.

    ``model_id`` and ``cluster_id`` are set if stored ones were chosen, ``num_trials`` for a search by trials.
    """

    model: Mapping[str, Any] | None
    onnx: Upload | None
    model_id: str | None
    cluster: Mapping[str, Any] | None
    cluster_id: str | None
    calibration_id: str | None
    options: Mapping[str, Any]
    num_trials: int | None


@cache
def zoo() -> tuple[Choice, ...]:
    """All models of the zoo."""
    return tuple(Choice(name, name) for name in sorted(read_catalog()))


@cache
def cluster_presets() -> tuple[Choice, ...]:
    """All cluster presets with their devices; those for this machine first."""
    known = presets()["clusters"]
    names = sorted(known, key=lambda name: (name not in _LOCAL_PRESETS, name))
    return tuple(Choice(name, f"{name}: {_described(known[name])}") for name in names)


def searchers() -> tuple[str, ...]:
    """Names of the searchers."""
    return tuple(SEARCHERS)


def schedules() -> tuple[str, ...]:
    """Names of the pipeline schedules."""
    return tuple(SCHEDULES)


def precisions() -> tuple[str, ...]:
    """Names of the training precisions."""
    return tuple(PRECISIONS)


def max_file_bytes(max_body_bytes: int) -> int:
    """Largest file for which the form around it stays within the limit of bodies."""
    return min(max(max_body_bytes - _FORM_OVERHEAD_BYTES, max_body_bytes // 2), MAX_FILE_BYTES)


def concerns_onnx_file(problem: Mapping[str, Any]) -> bool:
    """Whether a problem concerns the ONNX file."""
    field = str(problem.get("field", ""))
    return field in (ONNX, "model") or field.startswith("model.")


def _described(preset: Mapping[str, Any]) -> str:
    if "groups" in preset:
        return " and ".join(f"{group['name']}: {_described(group)}" for group in preset["groups"])
    device = preset["device"] if isinstance(preset["device"], str) else preset["device"]["name"]
    return f"{device}, {' × '.join(str(level['count']) for level in preset['levels'])} by default"


def parse_form(form: Form) -> PlanRequest:
    """Parse the form; raise ``InputError`` that names the form's field."""
    onnx = _onnx(form) if form.text("source") == ONNX else None
    model_id, model = (None, None) if onnx else _model(form)
    cluster_id, cluster = _cluster(form)
    calibration_id, num_trials = form.text("calibration_id"), form.integer("trials")
    return PlanRequest(model, onnx, model_id, cluster, cluster_id, calibration_id, _options(form), num_trials)


def restore_form(captured: Mapping[str, Any], model_id: str | None) -> Form:
    """The form that a capture was posted with.

    Args:
        captured: payload of the capture job.
        model_id: the captured model, which is chosen in place of its source.
    """
    asked = captured.get("search") or {}
    found: dict[str, Any] = {**captured, **asked, **_form_options(asked.get("options", {}))}
    if "cluster_id" in asked:
        found["where"] = "stored"
    if model_id is not None:
        found |= {"source": "stored", "model_id": model_id}
    elif ONNX in captured:
        found["source"] = ONNX
    else:
        found |= {"source": "config", "hf_config": json.dumps(captured.get("hf_config"), indent=2)}
    return Form({name: str(found[name]) for name in _RESTORED if found.get(name) is not None})


def _form_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the form has them."""
    found = {name: f"{value:g}" if isinstance(value, float) else value for name, value in options.items()}
    if (limit := options.get("memory_limit_bytes")) is not None:
        found["memory_gib"] = f"{limit / _GIB:.12g}"
    if schedules := options.get("schedules"):
        found["schedule"] = schedules[0]
    return found


def _model(form: Form) -> tuple[str | None, dict[str, Any] | None]:
    source = form.text("source") or "zoo"
    if source == "stored":
        return _needed(form, "model_id", "a stored model"), None
    if source == "zoo":
        return None, {"zoo": _needed(form, "zoo", "a model of the zoo")}
    if source != "config":
        raise InputError("source", source, "expected zoo, config, onnx or stored")
    config = parse(_config(form), what="hf_config")
    if not isinstance(config, dict):
        raise InputError("hf_config", json.dumps(config)[:100], "expected a JSON object")
    sizes = {name: form.integer(name) for name in ("seq_len", "image_size")}
    return None, {"hf_config": config, **{name: size for name, size in sizes.items() if size is not None}}


def _onnx(form: Form) -> Upload:
    if ONNX not in form.files:
        raise InputError(ONNX, None, "expected an ONNX file: choose one")
    return form.files[ONNX]


def _config(form: Form) -> bytes:
    typed = (form.text("hf_config") or "").encode()
    if len(typed) > MOST_CONFIG_BYTES:
        limit = f"expected at most {MOST_CONFIG_BYTES} bytes"
        raise InputError("hf_config", f"{len(typed)} bytes", limit)
    return typed or _config_file(form).encode()


def _config_file(form: Form) -> str:
    """Text of the uploaded file; with JavaScript, browsers have copied it into the text field."""
    file = form.files.get("hf_config_file")
    if file is None:
        raise InputError("hf_config", None, "expected the contents of a config.json")
    if len(file.content) > MOST_CONFIG_BYTES:
        value, limit = f"{file.name}, {len(file.content)} bytes", f"expected at most {MOST_CONFIG_BYTES} bytes"
        raise InputError("hf_config", value, limit)
    try:
        return file.content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError("hf_config", file.name, f"expected JSON in UTF-8 ({error})") from None


def _cluster(form: Form) -> tuple[str | None, dict[str, Any] | None]:
    if form.text("where") == "stored":
        return _needed(form, "cluster_id", "a stored cluster"), None
    preset, nodes, devices = _needed(form, "preset", "a preset"), form.integer("nodes"), form.integer("devices")
    if devices is not None and nodes is None:
        raise InputError("nodes", None, "required if the number of devices is given")
    counts = "" if nodes is None else f":{nodes}" if devices is None else f":{nodes}x{devices}"
    return None, {"preset": f"{preset}{counts}"}


def _needed(form: Form, name: str, what: str) -> str:
    given = form.text(name)
    if given is None:
        raise InputError(name, None, f"expected {what}")
    return given


def _options(form: Form) -> dict[str, Any]:
    memory = form.number("memory_gib")
    found: dict[str, Any] = {
        "global_batch": form.integer("global_batch"),
        "micro_batch": form.integer("micro_batch"),
        "time_limit_s": form.number("time_limit_s"),
        "searcher": form.text("searcher"),
        "optimizer": form.text("optimizer"),
        "precision": form.text("precision"),
        "memory_limit_bytes": None if memory is None else round(memory * _GIB),
        "stages": form.integer("stages"),
        "schedules": [schedule] if (schedule := form.text("schedule")) else None,
        "storage": form.text("storage"),
        "recompute": form.integer("recompute"),
        "data_parallel": form.integer("data_parallel"),
        "tensor_parallel": form.integer("tensor_parallel"),
    }
    return {name: value for name, value in found.items() if value is not None}
