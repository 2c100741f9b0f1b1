"""A cluster with really slow links on one Linux machine, emulated for tests and benchmarks.

    python -m autosbp.testing.emulated --nodes 2 --ranks 2 --rate 200 -- MODULE ARGUMENTS
    python -m autosbp.testing.emulated --sweep

Nodes are network namespaces, so it needs root, ``ip`` and ``tc``; ``unavailable_reason()`` says what is missing. Ranks of one
node communicate over its loopback interface, ranks of two nodes over links of limited rate and, optionally, with delay.
"""

from __future__ import annotations

from autosbp.testing.emulated._cluster import EmulatedCluster
from autosbp.testing.emulated._network import sweep, unavailable_reason
from autosbp.testing.emulated._spec import Shape

__all__ = ["EmulatedCluster", "Shape", "sweep", "unavailable_reason"]
