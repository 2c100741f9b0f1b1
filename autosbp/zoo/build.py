"""``python -m autosbp.zoo.build [NAME...]``: capture the zoo's models into ``autosbp/data/zoo/NAME.json.gz``.

The same versions of torch and transformers give the same bytes: canonical JSON, no time stamp, repeated blocks folded.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autosbp.errors import AutosbpError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.sbp.rules import check_graph
from autosbp.utils.json_io import canonical
from autosbp.zoo.catalog import HfEntry, ModuleEntry, read_catalog


def build(name: str) -> LogicalGraph:
    """Capture one model of the catalog and check it."""
    catalog = read_catalog()
    if name not in catalog:
        raise InputError("zoo", name, f"expected one of {', '.join(catalog)}")
    entry = catalog[name]
    graph = _from_config(entry) if isinstance(entry, HfEntry) else _from_module(entry)
    provenance = {key: text for key, text in graph.provenance.items() if key != "checked"}  # tests check the small ones
    graph = replace(graph, provenance={**provenance, "origin": entry.source})
    check_graph(graph)
    return graph


def compressed_document(graph: LogicalGraph) -> bytes:
    """The graph's document as the bytes of its shipped file."""
    return gzip.compress(canonical(graph.to_dict()), compresslevel=9, mtime=0)


def _from_config(entry: HfEntry) -> LogicalGraph:
    from autosbp.graph.huggingface import capture_hf_config

    return capture_hf_config(entry.config, entry.seq_len, name=entry.name, check=False)


def _from_module(entry: ModuleEntry) -> LogicalGraph:
    import torch

    from autosbp.graph.capture import build_on_meta, capture
    from autosbp.zoo import models

    module = build_on_meta(lambda: getattr(models, entry.module)(**entry.arguments))
    inputs = {
        name: torch.zeros(4, *sizes, dtype=torch.long if name in entry.high else torch.float32, device="meta")
        for name, sizes in entry.inputs.items()
    }
    return capture(
        module,
        inputs,
        name=entry.name,
        input_high=entry.high,
        provenance={"source": f"autosbp.zoo.models.{entry.module}"},
        check=False,
    )


def main(names: Sequence[str]) -> int:
    """Build the named models, or all; return the exit code."""
    folder = Path(__file__).parents[1] / "data" / "zoo"
    for name in names or read_catalog():
        try:
            graph = build(name)
        except AutosbpError as error:
            sys.stderr.write(f"{name}: {error}\n")
            return error.exit_code
        data = compressed_document(graph)
        (folder / f"{name}.json.gz").write_bytes(data)
        counts = graph.summary()
        sys.stdout.write(
            f"{name}: {counts['num_parameters']:,} parameters, {counts['num_nodes']} nodes, {len(data)} bytes\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
