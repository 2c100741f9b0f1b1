"""Strict reading of the graph's JSON document, which ``LogicalGraph.to_dict`` writes.

A document holds no code and no pickles. Reading checks version, unknown fields, unique names, order (a reference to a
later node would be a cycle) and sizes; ``autosbp.sbp.rules.check_graph`` checks ops and shapes against their rules.
"""

from __future__ import annotations

from autosbp.errors import GraphError, InputError
from autosbp.graph._reader import Reader
from autosbp.graph.ir import LogicalGraph


def from_dict(data: object) -> LogicalGraph:
    """Read and check a document; raise ``GraphError`` naming the field, the value and the limit."""
    try:
        return Reader(data).read()
    except GraphError:
        raise
    except RecursionError:
        raise GraphError("document", "...", "lists and mappings are nested too deeply") from None
    except InputError as error:
        raise GraphError(error.field, error.value, error.limit) from None
