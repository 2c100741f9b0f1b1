"""Bucket schedule: when gradient buckets are reduced, which the executor runs and the memory model follows."""

from __future__ import annotations

from collections.abc import Callable

from autosbp.program.gradient_buckets import AT_END
from autosbp.program.parameter_flow import ParameterFlow


class BucketSchedule:
    """The gradient buckets of one rank in a step, in the order in which every rank issues them.

    Args:
        flow: the strategy's parameter flow.
        issue: called with a bucket's index in ``flow.buckets`` when its turn has come.

    Set ``open`` for the backward of the last microbatch: in it a bucket is issued when the last of its gradients has
    come from all its readers. Call ``finish`` afterwards. Not thread-safe.
    """

    def __init__(self, flow: ParameterFlow, issue: Callable[[int], None]) -> None:
        self.open = False
        self._issue = issue
        self._buckets_of: dict[str, list[int]] = {}
        for at, bucket in enumerate(flow.buckets):
            for name in bucket.names:
                self._buckets_of.setdefault(name, []).append(at)
        # A bucket that is ready at the end gets a count that never reaches 0: only ``finish`` issues it.
        self._expected = [
            sum(flow.sources[name] for name in bucket.names) + (bucket.ready == AT_END) for bucket in flow.buckets
        ]
        self._missing = list(self._expected)
        self._next = 0

    def mark_ready(self, name: str) -> None:
        """Count one complete source of this parameter's gradient; issue the buckets that are complete, in order."""
        for at in self._buckets_of.get(name, ()):
            self._missing[at] -= 1
        while self._next < len(self._missing) and self._missing[self._next] == 0:
            self._issue_next()

    def finish(self) -> None:
        """Issue the remaining buckets, and begin anew."""
        while self._next < len(self._missing):
            self._issue_next()
        self._missing, self._next = list(self._expected), 0

    def _issue_next(self) -> None:
        at, self._next = self._next, self._next + 1
        self._issue(at)
