"""Layouts of ops without a rule, found by running the op in parts (``docs/custom-ops.md``): ``discover`` for one op,
``discover_rules`` for a graph."""

from autosbp.discovery._graph import discover_rules
from autosbp.discovery._search import Discovery, discover

__all__ = ["Discovery", "discover", "discover_rules"]
