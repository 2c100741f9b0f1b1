"""Reading and writing the files of commands."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosbp.errors import InputError
from autosbp.jsonio import Fields, read_file

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan import Plan

_BREAKDOWN = ("compute_s", "exposed_comm_s", "bubble_s", "optimizer_s")
_HIDDEN, _BY_PURPOSE = "hidden_comm_s", "exposed_comm_by_purpose_s"
"""What plans of earlier releases do not say."""


def check_output(path: Path | None) -> None:
    """Refuse a file that could not be written, before the work that would be lost."""
    if path is None:
        return
    if path.is_dir():
        raise InputError("output", str(path), "a file is expected; this is a folder")
    if path.exists() and not path.is_file():
        if not os.access(path, os.W_OK):
            raise InputError("output", str(path), "an output that can be written is expected")
    elif not (folder := path.resolve().parent).is_dir() or not os.access(folder, os.W_OK):
        raise InputError("output", str(path), "a file in an existing folder that can be written is expected")


def write_text(path: Path, text: str) -> None:
    """Write atomically: readers see the old file or the new one, whatever happens. ``.gz`` is packed. What a link points to is
    written, and what is no file, such as a device or a pipe, is written to and stays what it is."""
    check_output(path)
    data = gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode()
    if path.exists() and not path.is_file():
        try:
            path.write_bytes(data)
        except OSError as error:
            raise InputError("output", str(path), f"an output that can be written is expected ({error})") from None
        return
    path = path.resolve()
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError("output", str(path), f"a file that can be written is expected ({error})") from None
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        draft.chmod(0o666 & ~_umask())
        draft.replace(path)
    except OSError as error:
        raise InputError("output", str(path), f"a file that can be written is expected ({error})") from None
    finally:
        with suppress(OSError):
            draft.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """A document, indented for reading and for version control; the same document gives the same bytes."""
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def read_plan(path: str, baseline: str | None = None) -> Plan:
    """A plan, or one of its baselines in its place."""
    from autosbp.plan import Plan

    plan = Plan.from_dict(read_file(Path(path)))
    _check_costs(plan.document)
    return plan if baseline is None else plan.with_baseline(baseline)


def _check_costs(document: Mapping[str, Any]) -> None:
    """The members that commands show; ``Plan.from_dict`` checks those that an executor needs."""
    fields = Fields(document, "", document)
    for name in ("model", "searcher"):
        fields.text(name)
    for name in ("step_time_s", "comm_bytes_per_device", "memory_bytes_per_device", "evaluations"):
        fields.number(name)
    fields.positive("memory_limit_bytes")
    breakdown = Fields(fields.mapping("breakdown"), "breakdown", (*_BREAKDOWN, _HIDDEN, _BY_PURPOSE))
    for name in _BREAKDOWN:
        breakdown.number(name)
    breakdown.number(_HIDDEN, 0.0)
    exposed = breakdown.mapping(_BY_PURPOSE, {})
    for name in exposed:
        Fields(exposed, breakdown.at(_BY_PURPOSE), exposed).number(name)
    memory = fields.mapping("memory_breakdown", {})
    for name in memory:
        Fields(memory, "memory_breakdown", memory).number(name)
    for name, entry in fields.mapping("baselines").items():
        baseline = Fields(entry, f"baselines.{name}", entry if isinstance(entry, Mapping) else ())
        if baseline.raw("feasible"):
            baseline.number("step_time_s")
    for at, sentence in enumerate(fields.sequence("warnings", ())):
        if not isinstance(sentence, str):
            raise InputError(f"warnings[{at}]", sentence, "a sentence is expected")
    for name in ("gap", "lower_bound_s"):
        if fields.has(name):
            fields.number(name)
    fields.mapping("provenance")


def read_calibration(path: str | None) -> Calibration | None:
    """A calibration, if one is named."""
    from autosbp.costmodel.calibration import Calibration

    return None if path is None else Calibration.from_dict(read_file(Path(path)))


def is_calibration(path: str) -> bool:
    """Whether a file that can be read says that it is a calibration."""
    from autosbp.costmodel.calibration import SCHEMA

    document = read_file(Path(path))
    return isinstance(document, Mapping) and document.get("schema") == SCHEMA


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes that a Hugging Face model is captured with; None leaves the config's own."""

    seq_len: int | None = None
    image_size: int | None = None

    def refuse(self, limit: str) -> None:
        """``InputError`` for the first that is given."""
        for name in self.__slots__:
            if getattr(self, name) is not None:
                raise InputError(name, getattr(self, name), limit)


NO_SIZES = ModelSizes()


def read_model(model: str, sizes: ModelSizes = NO_SIZES) -> LogicalGraph:
    """The graph of a MODEL; ``capture`` alone decides which forms need torch."""
    from autosbp import api

    return api.capture(model, seq_len=sizes.seq_len, image_size=sizes.image_size)


def graph_source(graph_file: str | None, model: str | None, sizes: ModelSizes) -> str | None:
    """The one of the two options that is given; sizes without any would be those of nothing."""
    if graph_file is not None and model is not None:
        raise InputError("model", model, "one of --graph and --model is expected, not both")
    source = graph_file or model
    if source is None:
        sizes.refuse("--model hf:CONFIG is expected with it")
    return source


def read_plan_graph(plan: Plan, graph_file: str | None, model: str | None, sizes: ModelSizes, why: str) -> LogicalGraph:
    """The plan's graph from ``--graph`` or ``--model``; a plan holds the hash of its graph, not the graph."""
    graph = find_plan_graph(plan, graph_file, model, sizes)
    if graph is None:
        raise InputError("graph", None, f"{why} needs the plan's graph: --graph FILE or --model MODEL")
    return graph


def find_plan_graph(plan: Plan, graph_file: str | None, model: str | None, sizes: ModelSizes) -> LogicalGraph | None:
    """The plan's graph, if one of the two options is given."""
    source = graph_source(graph_file, model, sizes)
    if source is None:
        return None
    graph = read_model(source, sizes)
    wanted = plan.document["provenance"].get("graph_hash")
    if graph.graph_hash != wanted:
        raise InputError("graph", source, f"the plan's graph {wanted} is expected; this one is {graph.graph_hash}")
    return graph
