"""Read and write the files of commands."""

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
from autosbp.utils.json_io import Fields, read_file

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan.plan import Plan

_BREAKDOWN = ("compute_s", "exposed_comm_s", "bubble_s", "optimizer_s")
_HIDDEN, _BY_PURPOSE = "hidden_comm_s", "exposed_comm_by_purpose_s"
"""Fields that plans of older releases lack."""


def check_output(path: Path | None) -> None:
    """Raise ``InputError`` if a file cannot be written, before work is done whose result would be lost."""
    if path is None:
        return
    if path.is_dir():
        raise InputError("output", str(path), "expected a file, got a folder")
    if path.exists() and not path.is_file():
        if not os.access(path, os.W_OK):
            raise InputError("output", str(path), "not writable")
    elif not (folder := path.resolve().parent).is_dir() or not os.access(folder, os.W_OK):
        raise InputError("output", str(path), "expected a file in an existing, writable folder")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: readers see the old content or the new content, never a mixture.

    A ``.gz`` file is compressed. A symbolic link is followed. A path that is not a regular file, such as a device or a
    pipe, is written to directly.
    """
    check_output(path)
    data = gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode()
    if path.exists() and not path.is_file():
        try:
            path.write_bytes(data)
        except OSError as error:
            raise InputError("output", str(path), f"cannot be written ({error})") from None
        return
    path = path.resolve()
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError("output", str(path), f"cannot be written ({error})") from None
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        draft.chmod(0o666 & ~_umask())
        draft.replace(path)
    except OSError as error:
        raise InputError("output", str(path), f"cannot be written ({error})") from None
    finally:
        with suppress(OSError):
            draft.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document as indented JSON; equal documents give equal bytes, which suits version control."""
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def read_plan(path: str, baseline: str | None = None) -> Plan:
    """Read a plan; with ``baseline``, one of its baselines as a plan."""
    from autosbp.plan.plan import Plan

    plan = Plan.from_dict(read_file(Path(path)))
    _check_costs(plan.document)
    return plan if baseline is None else plan.with_baseline(baseline)


def _check_costs(document: Mapping[str, Any]) -> None:
    """Check the fields that commands print; ``Plan.from_dict`` checks those that the executor needs."""
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
    for part in ("memory_breakdown", "memory_reserve"):
        memory = fields.mapping(part, {})
        for name in memory:
            Fields(memory, part, memory).number(name)
    for name, entry in fields.mapping("baselines").items():
        baseline = Fields(entry, f"baselines.{name}", entry if isinstance(entry, Mapping) else ())
        if baseline.raw("feasible"):
            baseline.number("step_time_s")
    for at, sentence in enumerate(fields.sequence("warnings", ())):
        if not isinstance(sentence, str):
            raise InputError(f"warnings[{at}]", sentence, "expected a sentence")
    for name in ("gap", "lower_bound_s"):
        if fields.has(name):
            fields.number(name)
    fields.mapping("provenance")


def read_calibration(path: str | None) -> Calibration | None:
    """Read a calibration file; None if ``path`` is None."""
    from autosbp.costmodel.calibration import Calibration

    return None if path is None else Calibration.from_dict(read_file(Path(path)))


def is_calibration(path: str) -> bool:
    """Whether the file declares the schema of a calibration."""
    from autosbp.costmodel.calibration import SCHEMA

    document = read_file(Path(path))
    return isinstance(document, Mapping) and document.get("schema") == SCHEMA


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Input sizes for capturing a Hugging Face model; None takes the config's value."""

    seq_len: int | None = None
    image_size: int | None = None

    def refuse(self, limit: str) -> None:
        """Raise ``InputError`` for the first size that is set."""
        for name in self.__slots__:
            if getattr(self, name) is not None:
                raise InputError(name, getattr(self, name), limit)


NO_SIZES = ModelSizes()


def read_model(model: str, sizes: ModelSizes = NO_SIZES, check: bool = True) -> LogicalGraph:
    """Load or capture the graph of a MODEL; only ``capture`` decides which forms need torch."""
    from autosbp import api

    return api.capture(model, seq_len=sizes.seq_len, image_size=sizes.image_size, check=check)


def graph_source(graph_file: str | None, model: str | None, sizes: ModelSizes) -> str | None:
    """Return whichever of ``--graph`` and ``--model`` is given; ``InputError`` for both, or for sizes without either."""
    if graph_file is not None and model is not None:
        raise InputError("model", model, "use either --graph or --model, not both")
    source = graph_file or model
    if source is None:
        sizes.refuse("requires --model hf:CONFIG")
    return source


def read_plan_graph(plan: Plan, graph_file: str | None, model: str | None, sizes: ModelSizes, why: str) -> LogicalGraph:
    """The plan's graph from ``--graph`` or ``--model``, which are required: a plan holds only its graph's hash."""
    graph = find_plan_graph(plan, graph_file, model, sizes)
    if graph is None:
        from autosbp.zoo.catalog import read_catalog

        name = str(plan.document.get("model", ""))
        known = f", here --model zoo:{name}" if name in read_catalog() else f" of {name}" if name else ""
        raise InputError("graph", None, f"{why} requires the plan's graph: --graph FILE or --model MODEL{known}")
    return graph


def find_plan_graph(plan: Plan, graph_file: str | None, model: str | None, sizes: ModelSizes) -> LogicalGraph | None:
    """The plan's graph, in its precision, if ``--graph`` or ``--model`` is given, else None.

    Raises:
        InputError: another graph than the plan's.
    """
    source = graph_source(graph_file, model, sizes)
    if source is None:
        return None
    from autosbp.graph.precision import planned_graph

    return planned_graph(read_model(source, sizes), plan.document)
