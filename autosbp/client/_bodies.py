"""What a client sends: the bodies of requests that can be asked for in several ways."""

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
    """Of ``POST /v1/models``: one of four forms. ``sizes`` are a configuration's, ``name`` is an ONNX model's; both may be left
    out."""
    given = [form for form in (graph, zoo, hf_config, onnx) if form is not None]
    if len(given) != 1:
        raise InputError("model", len(given), "exactly one of graph, zoo, hf_config and onnx is expected")
    if name is not None and onnx is None:
        raise InputError("name", name, "a name is for an ONNX file; other forms have their own")
    if hf_config is not None:
        return {"hf_config": hf_config, **{key: size for key, size in sizes.items() if size is not None}}
    if onnx is not None:
        return _onnx_body(onnx, name)
    return {"zoo": zoo} if graph is None else graph


def _onnx_body(onnx: bytes | Path, name: str | None) -> dict[str, Any]:
    """A file, or its content; a file's model is called as the file where it is given no name."""
    if isinstance(onnx, Path):
        from autosbp.graph.onnx import model_name, read_content

        name, onnx = name or model_name(onnx.name), read_content(onnx)
    body = {"onnx": b64encode(onnx).decode()}
    return body if name is None else {**body, "name": name}
