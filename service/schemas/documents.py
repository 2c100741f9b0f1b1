"""File formats that clients post, as components of the OpenAPI document: JSON Schemas that the library ships."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from pydantic import BaseModel

from autosbp.service.schemas.calibrations import CalibrationRequest
from autosbp.service.schemas.clusters import PresetCluster
from autosbp.service.schemas.models import HfModel, OnnxModel, ZooModel

_REF = "#/components/schemas/"
_FILES: Mapping[str, str] = {
    "GraphDocument": "graph.schema.json",
    "ClusterDocument": "cluster.schema.json",
    "CalibrationDocument": "calibration.schema.json",
}
_MODELS: tuple[type[BaseModel], ...] = (ZooModel, HfModel, OnnxModel, PresetCluster, CalibrationRequest)
"""Models of the components that the framework does not document.

Routes parse all but the last by hand, because they accept several types of bodies. The framework would write the
largest integers of ``CalibrationRequest`` as floats.
"""


def any_of(*names: str) -> dict[str, Any]:
    """Document a request body that is one of these components."""
    schema = {"anyOf": [{"$ref": f"{_REF}{name}"} for name in names]}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


def components() -> dict[str, Any]:
    """The components that ``any_of`` names, and those they refer to."""
    found: dict[str, Any] = {}
    for model in _MODELS:
        schema = model.model_json_schema(ref_template=f"{_REF}{{model}}")
        found |= schema.pop("$defs", {})
        found[model.__name__] = schema
    places = {}
    for name, file in _FILES.items():
        schema = json.loads((files("autosbp") / "data" / file).read_text())
        places[schema.pop("$id")] = f"{_REF}{name}"
        del schema["$schema"]
        found[name] = _replace_references(schema, {"#/$defs/": f"{_REF}{name}/$defs/"})
    return {name: _replace_references(schema, places) for name, schema in found.items()}


def _replace_references(schema: Any, places: Mapping[str, str]) -> Any:
    """Replace the prefixes of references by ``places``."""
    if isinstance(schema, list):
        return [_replace_references(each, places) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _replace_references(value, places) for key, value in schema.items()}
    if isinstance(reference := schema.get("$ref"), str):
        for old, new in places.items():
            if reference.startswith(old):
                moved["$ref"] = new + reference.removeprefix(old)
    return moved
