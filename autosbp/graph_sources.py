"""``load_model``: load or capture the graph that a MODEL string names.

| form | meaning |
|---|---|
| ``FILE.json``, ``FILE.json.gz`` | a graph document |
| ``zoo:NAME`` | a model that ships with autosbp |
| ``hf:FILE`` | a Hugging Face config file |
| ``onnx:FILE`` | an ONNX model (``autosbp.graph.onnx``) |
| ``package.module:factory`` | a callable that returns a module and example inputs |

Documents and the zoo are read without torch. Captured models get discovered rules for ops that the rule table lacks
(``autosbp.discovery``). Every graph is checked against the op rules before it is returned.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.sbp.rules import check_graph
from autosbp.utils.json_io import loads
from autosbp.zoo import zoo_graph

if TYPE_CHECKING:
    from autosbp.graph.module_check import ModuleCall

MAX_FILE_BYTES = 256 * 2**20
_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(?<!\.json)")
"""A model on the Hugging Face hub, such as ``meta-llama/Meta-Llama-3-8B``."""
_GZIP = 31  # zlib window bits of a gzip stream
_FORMS = "expected a graph FILE.json or FILE.json.gz, zoo:NAME, hf:config.json, onnx:FILE or package.module:factory"


def load_graph(document: object) -> LogicalGraph:
    """Read a graph document and check every op and shape; raise ``GraphError`` naming field, value and limit."""
    graph = from_dict(document)
    check_graph(graph)
    return graph


def load_model(
    model: str, *, seq_len: int | None = None, image_size: int | None = None, check: bool = True
) -> LogicalGraph:
    """Load or capture the graph of a MODEL string.

    Args:
        model: one of the forms of the module's table.
        seq_len: tokens per sequence, for a Hugging Face config.
        image_size: pixels per side of an image, for a Hugging Face config.
        check: compare what is captured with its module, where that is small enough (``graph.module_check``).

    Raises:
        InputError: for an unknown form, a file that is missing, malformed or larger than ``MAX_FILE_BYTES``, a factory
            that cannot be called, or a size with another form.
        GraphError: for a graph that breaks a rule of the IR.
        UnsupportedError: for a model that cannot be captured.
    """
    scheme, _, rest = model.partition(":")
    for name, size in (("seq_len", seq_len), ("image_size", image_size)):
        if size is not None and scheme != "hf":
            raise InputError(name, size, f"only hf: models accept sizes; {model} has fixed sizes")
    if scheme == "hf":
        graph = _hugging_face(rest, seq_len, image_size, check)
    else:
        reader = _SCHEMES.get(scheme) if rest else None
        if reader is not None:
            graph = reader(rest)
        elif model.endswith((".json", ".json.gz")):
            graph = from_dict(loads(_read(Path(model)), model))
        elif _FACTORY.fullmatch(model):
            graph = _factory(model, check)
        else:
            raise InputError("model", model, _FORMS)
    check_graph(graph)
    return graph


def load_module(model: str, graph: LogicalGraph) -> ModuleCall | None:
    """The torch module that a MODEL string names, for comparing with ``graph``; None where there is only a graph."""
    if factory_module(model) is None:
        return None
    from autosbp.graph.user_modules import factory_call

    call = factory_call(model)
    return call if {leaf.name for leaf in graph.inputs} <= set(call.example) else None


def factory_module(model: str) -> str | None:
    """The module of a ``package.module:factory``; None for other forms."""
    path = model.partition(":")[0]
    return path if _FACTORY.fullmatch(model) and path not in ("hf", *_SCHEMES) else None


def _read(path: Path) -> bytes:
    """The file's content, decompressed if its name ends in ``.gz``; never more than ``MAX_FILE_BYTES``."""
    limit = f"at most {MAX_FILE_BYTES} bytes are read"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError("model", str(path), f"expected a readable file ({error})") from None
    if len(data) > MAX_FILE_BYTES:
        raise InputError("model", str(path), limit)
    if path.suffix != ".gz":
        return data
    stream = zlib.decompressobj(_GZIP)
    try:
        text = stream.decompress(data, MAX_FILE_BYTES + 1)
    except zlib.error as error:
        raise InputError("model", str(path), f"expected a gzip file ({error})") from None
    if len(text) > MAX_FILE_BYTES:
        raise InputError("model", str(path), f"{limit}, unpacked")
    if not stream.eof:
        raise InputError("model", str(path), "expected a complete gzip file; this one is truncated")
    return text


def _hugging_face(path: str, seq_len: int | None, image_size: int | None, check: bool) -> LogicalGraph:
    from autosbp.discovery import discover_rules
    from autosbp.graph.huggingface import capture_hf_config

    if _HUB_NAME.fullmatch(path) and not Path(path).exists():
        limit = (
            f"expected a config.json on this machine, nothing is downloaded; hf download {path} config.json brings it"
        )
        raise InputError("model", f"hf:{path}", limit)
    config = loads(_read(Path(path)), path)
    if not isinstance(config, dict):
        raise InputError(path, config, "a Hugging Face config is a JSON object")
    return discover_rules(capture_hf_config(config, seq_len, image_size=image_size, check=check))


def _onnx(path: str) -> LogicalGraph:
    from autosbp.discovery import discover_rules
    from autosbp.graph.onnx import capture_onnx, model_name, read_onnx_file

    return discover_rules(capture_onnx(read_onnx_file(Path(path)), model_name(path)))


def _factory(model: str, check: bool) -> LogicalGraph:
    from autosbp.discovery import discover_rules
    from autosbp.graph.user_modules import capture_factory

    return discover_rules(capture_factory(model, check))


_SCHEMES: dict[str, Callable[[str], LogicalGraph]] = {"zoo": zoo_graph, "onnx": _onnx}
