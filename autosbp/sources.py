"""``load_model``: the graph that a MODEL string names (DESIGN section 10).

| form | what it is |
|---|---|
| ``FILE.json``, ``FILE.json.gz`` | a graph document |
| ``zoo:NAME`` | a model that ships with autosbp |
| ``hf:FILE`` | a Hugging Face config file |
| ``onnx:FILE`` | an ONNX model (``autosbp.graph.onnx``) |
| ``package.module:factory`` | a callable that returns a module and example inputs |

Documents and the zoo are read without torch. What is captured here gets rules for ops that the table lacks
(``autosbp.discovery``). Every graph is checked against the op rules before it is returned.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from pathlib import Path

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.jsonio import loads
from autosbp.sbp.rules import check_graph
from autosbp.zoo import zoo_graph

MAX_FILE_BYTES = 256 * 2**20
_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_GZIP = 31  # zlib's window bits for a gzip stream
_FORMS = "a graph FILE.json or FILE.json.gz, zoo:NAME, hf:config.json, onnx:FILE or package.module:factory is expected"


def load_model(model: str, *, seq_len: int | None = None, image_size: int | None = None) -> LogicalGraph:
    """The graph of a MODEL string; ``seq_len`` sets the tokens per sequence of a Hugging Face config, ``image_size``
    the pixels per side of its images.

    Raises:
        InputError: for an unknown form, a file that is missing, malformed or larger than ``MAX_FILE_BYTES``, a factory
            that cannot be called, or a size with another form.
        GraphError: for a graph that breaks a rule of the IR.
        UnsupportedError: for a model that cannot be captured.
    """
    scheme, _, rest = model.partition(":")
    for name, size in (("seq_len", seq_len), ("image_size", image_size)):
        if size is not None and scheme != "hf":
            raise InputError(name, size, f"only hf: models take sizes, {model} has its own")
    if scheme == "hf":
        graph = _hugging_face(rest, seq_len, image_size)
    else:
        reader = _SCHEMES.get(scheme) if rest else None
        if reader is not None:
            graph = reader(rest)
        elif model.endswith((".json", ".json.gz")):
            graph = from_dict(loads(_read(Path(model)), model))
        elif _FACTORY.fullmatch(model):
            graph = _factory(model)
        else:
            raise InputError("model", model, _FORMS)
    check_graph(graph)
    return graph


def factory_module(model: str) -> str | None:
    """The module of a ``package.module:factory``; None for other forms."""
    path = model.partition(":")[0]
    return path if _FACTORY.fullmatch(model) and path not in ("hf", *_SCHEMES) else None


def _read(path: Path) -> bytes:
    """The file's content, unpacked where its name ends in ``.gz``; never more than ``MAX_FILE_BYTES``."""
    limit = f"at most {MAX_FILE_BYTES} bytes are read"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError("model", str(path), f"a readable file is expected ({error})") from None
    if len(data) > MAX_FILE_BYTES:
        raise InputError("model", str(path), limit)
    if path.suffix != ".gz":
        return data
    stream = zlib.decompressobj(_GZIP)
    try:
        text = stream.decompress(data, MAX_FILE_BYTES + 1)
    except zlib.error as error:
        raise InputError("model", str(path), f"a gzip file is expected ({error})") from None
    if len(text) > MAX_FILE_BYTES:
        raise InputError("model", str(path), f"{limit}, unpacked")
    if not stream.eof:
        raise InputError("model", str(path), "a whole gzip file is expected; this one is cut short")
    return text


def _hugging_face(path: str, seq_len: int | None, image_size: int | None) -> LogicalGraph:
    from autosbp.discovery import discover_rules
    from autosbp.graph.huggingface import capture_hf_config

    config = loads(_read(Path(path)), path)
    if not isinstance(config, dict):
        raise InputError(path, config, "a Hugging Face config is a JSON object")
    return discover_rules(capture_hf_config(config, seq_len, image_size=image_size))


def _onnx(path: str) -> LogicalGraph:
    from autosbp.discovery import discover_rules
    from autosbp.graph.onnx import capture_onnx, model_name, read_onnx_file

    return discover_rules(capture_onnx(read_onnx_file(Path(path)), model_name(path)))


def _factory(model: str) -> LogicalGraph:
    from autosbp.discovery import discover_rules
    from autosbp.graph.factories import capture_factory

    return discover_rules(capture_factory(model))


_SCHEMES: dict[str, Callable[[str], LogicalGraph]] = {"zoo": zoo_graph, "onnx": _onnx}
