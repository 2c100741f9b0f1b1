"""Layout discovery for ops without a rule, by running them in parts (``docs/how-to/custom-ops.md``).

``discover`` is for one op, ``discover_rules`` for a graph.
"""

from autosbp.discovery._graph_rules import discover_rules
from autosbp.discovery._search import Discovery, discover

__all__ = ["Discovery", "discover", "discover_rules"]
