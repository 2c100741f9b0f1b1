"""``autosbp capture``: the graph of a model, as a file or stored by a service."""

from __future__ import annotations

from autosbp.cli._files import ModelSizes, check_output, read_model, write_json
from autosbp.cli._options import AsJson, ImageSize, Model, Output, SeqLen, Server
from autosbp.cli._run import console, note, print_json
from autosbp.errors import InputError
from autosbp.units import num_bytes

_SUFFIXES = (".json", ".json.gz")


def capture(
    model: Model,
    output: Output = None,
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Capture a model's training graph; no weights are made or stored.

    With --server the service keeps the graph, and its id is printed.
    """
    if server is not None:
        _capture_there(server, model, output is not None, ModelSizes(seq_len, image_size), as_json)
        return
    if output is None:
        raise InputError("output", None, "-o FILE is expected, or --server URL")
    if not output.name.endswith(_SUFFIXES):
        raise InputError("output", str(output), f"a name that ends in {' or '.join(_SUFFIXES)} is expected")
    check_output(output)
    graph = read_model(model, ModelSizes(seq_len, image_size))
    write_json(output, graph.to_dict())
    found = {**graph.summary(), "output": str(output)}
    note(f"wrote {output}")
    if as_json:
        print_json(found)
        return
    console().print(
        f"{graph.name}: {found['num_parameters']:,} parameters ({num_bytes(found['parameter_bytes'])}), "
        f"{found['num_nodes']} ops, graph {graph.graph_hash}"
    )


def _capture_there(server: str, model: str, has_output: bool, sizes: ModelSizes, as_json: bool) -> None:
    from autosbp.cli._server import connected, post_model

    if has_output:
        raise InputError("output", "-o", "the service keeps the graph; leave out -o, or --server")
    with connected(server) as client:
        model_id = post_model(client, model, sizes)
    if as_json:
        print_json({"model_id": model_id})
    else:
        console().print(model_id)
