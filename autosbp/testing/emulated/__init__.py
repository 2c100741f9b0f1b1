"""A cluster on one Linux machine whose links are really slow: the project's stand-in for one, in tests and benchmarks.

    python -m autosbp.testing.emulated --nodes 2 --ranks 2 --rate 200 -- MODULE ARGUMENTS
    python -m autosbp.testing.emulated --sweep

Nodes are network namespaces, so it needs root and ``ip`` and ``tc``; ``why_not()`` tells what is missing. Ranks inside
a node talk over its loopback interface, ranks of two nodes over links of limited rate and, where asked for, delay.
"""

from __future__ import annotations

from autosbp.testing.emulated._cluster import EmulatedCluster
from autosbp.testing.emulated._network import sweep, why_not
from autosbp.testing.emulated._spec import Shape

__all__ = ["EmulatedCluster", "Shape", "sweep", "why_not"]
