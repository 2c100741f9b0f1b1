"""Readers of external documents, called as the service and the command line call them.

A reader returns if it accepts its input and raises one of the project's errors if it refuses it; anything else is a
crash.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from tempfile import NamedTemporaryFile
from typing import Any

from autosbp import api
from autosbp.cli._files import read_plan
from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.errors import AutosbpError
from autosbp.export import EXPORTERS, export_plan
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan, plan_id_of
from autosbp.service.schemas.models import HfModel
from autosbp.service.strict_json import parse
from autosbp.utils.json_io import canonical, loads_yaml
from autosbp.zoo import zoo_graph
from benchmarks.fuzz import _corpus
from benchmarks.fuzz._mutate import as_json, mutated_bytes, mutated_fields, mutated_tree

_OPTIONS = api.PlanOptions(global_batch=8, time_limit_s=2.0, baselines=("data_parallel",))
_MOST_DEVICES = 64
_PLANNED_FRACTION = 0.1
"""Fraction of the accepted documents that are also planned."""


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of input.

    Args:
        make: creates an input from a random generator.
        read: reads an input as it comes from outside.
        limit_s: processor seconds for one input.
        num_inputs: number of inputs in the long form.
    """

    make: Callable[[random.Random], bytes]
    read: Callable[[bytes, random.Random], None]
    limit_s: float
    num_inputs: int


def _json(corpus: Callable[[], tuple[Mapping[str, Any], ...]]) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        documents = corpus()
        if rng.random() < 0.7:
            return as_json(mutated_tree(rng.choice(documents), documents, rng), rng)
        return mutated_bytes(as_json(rng.choice(documents), rng), [as_json(rng.choice(documents), rng)], rng)

    return make


def _yaml(rng: random.Random) -> bytes:
    documents = _corpus.clusters()
    text = _corpus.as_yaml(rng.choice(documents), rng)
    return mutated_bytes(text, [_corpus.as_yaml(rng.choice(documents), rng)], rng, yaml=True)


def _plans(rng: random.Random) -> bytes:
    """Mutated plans; most get the correct id for their content, else the id check would hide everything after it."""
    documents = [document for _, document in _corpus.plans()]
    if rng.random() < 0.2:
        return mutated_bytes(as_json(rng.choice(documents), rng), [as_json(rng.choice(documents), rng)], rng)
    changed = mutated_tree(rng.choice(documents), documents, rng)
    if isinstance(changed, dict) and "plan_id" in changed and rng.random() < 0.9:
        with suppress(ValueError, TypeError, AutosbpError):  # documents that JSON cannot express have no id
            changed["plan_id"] = plan_id_of(changed)
    return as_json(changed, rng)


def _onnx(rng: random.Random) -> bytes:
    models = _corpus.onnx_models()
    change = mutated_fields if rng.random() < 0.85 else mutated_bytes
    return change(rng.choice(models), models, rng)


def _read_graph(data: bytes, rng: random.Random) -> None:
    graph = api.load_graph(parse(data))
    again = api.load_graph(parse(canonical(graph.to_dict())))
    assert again.graph_hash == graph.graph_hash
    canonical(graph.summary())
    if rng.random() < _PLANNED_FRACTION:
        _plan(graph, load_cluster("local:2x2"))


def _read_cluster(data: bytes, rng: random.Random) -> None:
    _take_cluster(parse(data), rng)


def _read_yaml(data: bytes, rng: random.Random) -> None:
    _take_cluster(loads_yaml(data.decode(errors="replace")), rng)


def _take_cluster(document: Any, rng: random.Random) -> None:
    if isinstance(document, dict) and "collectives" in document:
        calibration = Calibration.from_dict(document)
        assert Calibration.from_dict(parse(canonical(calibration.to_dict()))) == calibration
        cluster, costs = calibration.cluster, calibration
    else:
        cluster, costs = Cluster.from_dict(document), None
        assert Cluster.from_dict(parse(canonical(cluster.to_dict()))).cluster_hash == cluster.cluster_hash
    cluster.mesh()
    if rng.random() < _PLANNED_FRACTION and cluster.num_devices <= _MOST_DEVICES:
        _plan(zoo_graph("mlp-small"), cluster, costs)


def _read_config(data: bytes, _: random.Random) -> None:
    request = HfModel.read({"hf_config": parse(data), "seq_len": 8})
    graph = api.capture_hf_config(request.hf_config, request.seq_len, request.image_size)
    api.load_graph(parse(canonical(graph.to_dict())))


def _read_onnx(data: bytes, _: random.Random) -> None:
    """Parse and capture; the service does the latter in a job."""
    document = parse(canonical(api.read_onnx(data)))
    graph = api.capture_onnx(document)
    api.load_graph(parse(canonical(graph.to_dict())))


def _read_plan(data: bytes, rng: random.Random) -> None:
    with NamedTemporaryFile(suffix=".json") as file:
        file.write(data)
        file.flush()
        plan = read_plan(file.name)
    assert Plan.from_dict(parse(canonical(plan.to_dict()))).plan_id == plan.plan_id
    graph = next((one for one, document in _corpus.plans() if document["model"] == plan.document["model"]), None)
    if graph is not None:
        canonical(asdict(api.predict_costs(graph, plan.strategy, plan.cluster)))
        export_plan(rng.choice([*EXPORTERS]), plan, graph)


def _plan(graph: LogicalGraph, cluster: Cluster, costs: Calibration | None = None) -> None:
    plan = api.make_plan(graph, cluster, costs, replace(_OPTIONS))
    canonical(plan.to_dict())


TARGETS: Mapping[str, Target] = {  # slowest first
    "configurations": Target(_json(_corpus.configs), _read_config, 300.0, 400),
    "onnx files": Target(_onnx, _read_onnx, 60.0, 600),
    "graphs": Target(_json(_corpus.graphs), _read_graph, 20.0, 19_000),
    "plans": Target(_plans, _read_plan, 20.0, 2000),
    "cluster files": Target(_yaml, _read_yaml, 20.0, 2500),
    "clusters": Target(_json(_corpus.clusters), _read_cluster, 20.0, 4000),
    "calibrations": Target(_json(_corpus.calibrations), _read_cluster, 20.0, 2000),
}
