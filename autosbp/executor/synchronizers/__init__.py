"""Kernels of synchronization strategies (AutoDist section 2.3), for gradient messages that are not a single all-reduce.

The kernels of a rank run one after another on its communication thread, in the order of the gradient buckets, while
the backward pass continues. They have their own process groups, so they need no fixed order relative to the
program's collectives.
"""

from __future__ import annotations

from autosbp.executor.synchronizers._message_kernels import MessageKernels
from autosbp.executor.synchronizers._optimizer import SynchronizedOptimizer
from autosbp.executor.synchronizers._parameter_server import MakeOptimizer
from autosbp.executor.synchronizers._thread import CommunicationThread
from autosbp.executor.synchronizers._transport import SyncGroups, message_axes, sync_groups

__all__ = [
    "CommunicationThread",
    "MakeOptimizer",
    "MessageKernels",
    "SyncGroups",
    "SynchronizedOptimizer",
    "message_axes",
    "sync_groups",
]
