"""The model zoo: captured graphs that ship with the package, as ``zoo:NAME``. Reading them does not import torch."""

from __future__ import annotations

import gzip
from importlib.resources import files

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.utils.json_io import loads

_FOLDER = files("autosbp") / "data" / "zoo"
_SUFFIX = ".json.gz"


def zoo_names() -> tuple[str, ...]:
    """Names of the models that ship with this release, sorted."""
    return tuple(
        sorted(entry.name.removesuffix(_SUFFIX) for entry in _FOLDER.iterdir() if entry.name.endswith(_SUFFIX))
    )


def zoo_graph(name: str) -> LogicalGraph:
    """The shipped graph of a model; raise ``InputError`` listing the known names for an unknown one."""
    if name not in zoo_names():
        raise InputError("zoo", name, f"expected one of {', '.join(zoo_names())}")
    text = gzip.decompress((_FOLDER / f"{name}{_SUFFIX}").read_bytes())
    return from_dict(loads(text, f"zoo:{name}", checks_names=False))
