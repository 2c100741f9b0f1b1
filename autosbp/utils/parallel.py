"""Run pure tasks on two cores with a forked child, or one task in the background (``submit``).

Parent and child take tasks from one queue, and the child sends its results back. A task's result does not depend on the
process that runs it, so plans do not depend on which process is faster. If no child can be created (one core, no fork,
a limit on processes or memory), or the child ends early, this process runs the remaining tasks.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from autosbp.utils import serialization
from autosbp.utils.forking import die_with_parent

T = TypeVar("T")
WAIT_S = 0.05
"""Interval of calls of ``waiting`` while a process waits for the other one."""
MAX_TASKS = 4096
"""Maximum number of tasks; their indices fit into a pipe."""
_NUMBER = 2
"""Bytes of a task index; so small reads are never partial."""
_state = {"alone": False, "child": False}


def run_serial(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run the tasks in this process; the counterpart of ``run_parallel``."""
    return [task() for task in tasks]


def run_parallel(tasks: Sequence[Callable[[], T]], waiting: Callable[[], None] | None = None) -> list[T]:
    """Run tasks on two cores; return their results in order.

    Tasks must be independent of each other and have no side effects that matter.

    Args:
        tasks: the tasks; their results must be serializable (``autosbp.utils.serialization``).
        waiting: called every ``WAIT_S`` while only the other process still works.

    Raises:
        Exception: that of the first failing task in order, as in a serial run.
    """
    if not 2 <= len(tasks) <= MAX_TASKS or not _can_fork():
        return run_serial(tasks)
    numbers = _queue(len(tasks))
    found: dict[int, T] = {}
    child = _Child.of(tasks, numbers)
    _state["alone"] = True
    try:
        _run_queued(tasks, numbers, found)
        found.update(child.answers(waiting) if child else {})
    finally:
        _state["alone"] = False
        os.close(numbers)
        if child:
            child.end()
    return [found[at] if at in found else task() for at, task in enumerate(tasks)]


class BackgroundTask(Generic[T]):
    """A task that another process runs, which may share its own tasks with a third one. See ``submit``."""

    def __init__(self, task: Callable[[], T]) -> None:
        self._task, self._child, self._found = task, None, list[T]()
        if _can_fork():
            numbers = _queue(1)
            self._child = _Child.of([task], numbers, shares=True)
            os.close(numbers)

    @property
    def in_background(self) -> bool:
        """Whether another process runs the task."""
        return self._child is not None

    def result(self, waiting: Callable[[], None] | None = None) -> T:
        """The result of the task, or its exception; ``waiting`` is called every ``WAIT_S`` until then."""
        if not self._found:
            answers: dict[int, T] = self._child.answers(waiting) if self._child else {}
            self.end()
            self._found.append(answers[0] if answers else self._task())
        return self._found[0]

    def end(self) -> None:
        """Kill the other process, if any."""
        if self._child:
            self._child.end()
        self._child = None


@contextmanager
def submit(task: Callable[[], T]) -> Iterator[BackgroundTask[T]]:
    """Run ``task`` in another process while this context is open.

    Without room for a process, the task runs here when its result is requested. The result must be serializable
    (``autosbp.utils.serialization``).
    """
    found = BackgroundTask(task)
    try:
        yield found
    finally:
        found.end()


@contextmanager
def single_process() -> Iterator[None]:
    """Create no other process while active."""
    before, _state["alone"] = _state["alone"], True
    try:
        yield
    finally:
        _state["alone"] = before


def is_child() -> bool:
    """Whether this process runs tasks for another; only the parent reports progress."""
    return _state["child"]


def _can_fork() -> bool:
    """Whether there is a second core, and no child works already."""
    if _state["alone"] or sys.platform != "linux":
        return False
    return len(os.sched_getaffinity(0)) > 1


def _queue(count: int) -> int:
    """A pipe filled with the indices of the tasks, at whose end reads return nothing."""
    end, begin = os.pipe()
    os.write(begin, b"".join(at.to_bytes(_NUMBER, "big") for at in range(count)))
    os.close(begin)
    return end


def _run_queued(tasks: Sequence[Callable[[], T]], numbers: int, found: dict[int, T]) -> None:
    """Run tasks from the queue until it is empty or one raises; ``run_parallel`` runs that one again in order."""
    while number := os.read(numbers, _NUMBER):
        at = int.from_bytes(number, "big")
        try:
            found[at] = tasks[at]()
        except Exception:
            return


class _Child:
    """The child process. It belongs to the thread that created it."""

    def __init__(self, pid: int, answers: int) -> None:
        self._pid, self._results_fd = pid, answers

    @staticmethod
    def of(tasks: Sequence[Callable[[], T]], numbers: int, *, shares: bool = False) -> _Child | None:
        """Fork a child, or return None if the system has no room for it; with ``shares`` it may fork a child, too."""
        answers, ours = os.pipe()
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                # The warning is about locks that other threads hold for ever; a child only computes and takes none of
                # them.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError:
            os.close(answers)
            os.close(ours)
            return None
        if pid == 0:
            _serve(tasks, numbers, ours, parent, shares)
        os.close(ours)
        return _Child(pid, answers)

    def answers(self, waiting: Callable[[], None] | None) -> dict[int, T]:
        """The child's results; empty if it ended early."""
        parts = []
        while waiting and not _readable(self._results_fd):
            waiting()
        while part := os.read(self._results_fd, 1 << 20):
            parts.append(part)
        with suppress(ValueError):  # truncated because the child ended
            answers: dict[int, T] = serialization.loads(b"".join(parts))
            return answers
        return {}

    def end(self) -> None:
        """Close the pipe, kill the child and reap it."""
        os.close(self._results_fd)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)  # also ends the child's own child
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _readable(descriptor: int) -> bool:
    """Wait up to ``WAIT_S`` for data or the end; unlike ``select``, it works with any number of open descriptors."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * WAIT_S))


def _serve(tasks: Sequence[Callable[[], T]], numbers: int, answers: int, parent: int, shares: bool) -> None:
    """Main function of the child; it exits without flushing buffers or running exit handlers, which are the parent's."""
    code = 1
    try:
        die_with_parent(parent)
        gc.disable()  # a collection would scan the parent's objects, and copy their pages
        _state.update(alone=not shares, child=True)
        found: dict[int, T] = {}
        _run_queued(tasks, numbers, found)
        rest = memoryview(serialization.dumps(found))
        while rest:
            rest = rest[os.write(answers, rest) :]
        code = 0
    finally:
        os._exit(code)
