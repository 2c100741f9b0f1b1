"""``autosbp capture``: write the graph of a model to a file, or store it in a service."""

from __future__ import annotations

from typing import Annotated

import typer

from autosbp.cli._exit_codes import console, note, print_json
from autosbp.cli._files import ModelSizes, check_output, read_model, write_json
from autosbp.cli._options import AsJson, ImageSize, Model, Output, SeqLen, Server
from autosbp.errors import InputError
from autosbp.utils.formatting import num_bytes

Check = Annotated[
    bool,
    typer.Option("--check/--no-check", help="Compare loss and gradients of the graph with the model itself."),
]
_SUFFIXES = (".json", ".json.gz")


def capture(
    model: Model,
    output: Output = None,
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    check: Check = True,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Capture a model's training graph, without storing weights.

    Where the model is small enough, loss and gradients of the graph are compared with the model's own. With --server the
    service stores the graph, and the command prints its id.
    """
    if server is not None:
        _capture_remotely(server, model, output is not None, ModelSizes(seq_len, image_size), as_json)
        return
    from autosbp.costmodel.model_work import sequence_length

    if output is None:
        raise InputError("output", None, "required: -o FILE or --server URL")
    if not output.name.endswith(_SUFFIXES):
        raise InputError("output", str(output), f"expected a file name ending in {' or '.join(_SUFFIXES)}")
    check_output(output)
    graph = read_model(model, ModelSizes(seq_len, image_size), check)
    write_json(output, graph.to_dict())
    length = sequence_length(graph)
    found = {**graph.summary(), "sequence_length": length, "output": str(output)}
    note(f"wrote {output}")
    if checked := graph.provenance.get("checked"):
        note(checked)
    if as_json:
        print_json(found)
        return
    console().print(
        f"{graph.name}: {found['num_parameters']:,} parameters ({num_bytes(found['parameter_bytes'])}), "
        f"{found['num_nodes']} ops, {'' if length is None else f'{length:,} tokens a sample, '}graph {graph.graph_hash}"
    )


def _capture_remotely(server: str, model: str, has_output: bool, sizes: ModelSizes, as_json: bool) -> None:
    from autosbp.cli._remote import open_client, post_model

    if has_output:
        raise InputError("output", "-o", "the service stores the graph; use either -o or --server")
    with open_client(server) as client:
        model_id = post_model(client, model, sizes)
    if as_json:
        print_json({"model_id": model_id})
    else:
        console().print(model_id)
