"""Request bodies that take one of several forms."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autosbp.errors import InputError


def model_body(
    graph: Mapping[str, Any] | None,
    zoo: str | None,
    hf_config: Mapping[str, Any] | None,
    onnx: bytes | Path | None,
    *,
    sizes: Mapping[str, int | None],
    name: str | None,
) -> Mapping[str, Any]:
    """Body of ``POST /v1/models`` in one of its four forms.

    Args:
        sizes: input sizes for ``hf_config``; None leaves the config's value.
        name: name of an ``onnx`` model; None derives it from the file.

    Raises:
        InputError: not exactly one form is given, or ``name`` without ``onnx``.
    """
    given = [form for form in (graph, zoo, hf_config, onnx) if form is not None]
    if len(given) != 1:
        raise InputError("model", len(given), "expected exactly one of graph, zoo, hf_config and onnx")
    if name is not None and onnx is None:
        raise InputError("name", name, "name applies only to onnx; other forms have their own name")
    if hf_config is not None:
        return {"hf_config": hf_config, **{key: size for key, size in sizes.items() if size is not None}}
    if onnx is not None:
        return _onnx_body(onnx, name)
    return {"zoo": zoo} if graph is None else graph


def _onnx_body(onnx: bytes | Path, name: str | None) -> dict[str, Any]:
    """Body for an ONNX file or its content; without ``name``, a file's model is named after the file."""
    if isinstance(onnx, Path):
        from autosbp.graph.onnx_files import model_name, read_content

        name, onnx = name or model_name(onnx.name), read_content(onnx)
    body = {"onnx": b64encode(onnx).decode()}
    return body if name is None else {**body, "name": name}
