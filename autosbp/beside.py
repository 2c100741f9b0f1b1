"""Pure tasks on two cores: a forked child takes some of them, whichever comes next, and hands back what they gave; or one
task whose answer is wanted later (``begun``).

Who runs a task makes no difference to what it gives, so plans do not depend on which process is quicker. Where no child can
be made (one core, no fork, a limit on processes or memory), or the child ends early, this process runs what is left.
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

from autosbp import handed
from autosbp.end_with_parent import end_with_parent

T = TypeVar("T")
WAIT_S = 0.05
"""How often one who waits for the other process is called."""
MAX_TASKS = 4096
"""Numbers of tasks in a pipe, which has room for them all."""
_NUMBER = 2
"""Bytes of a number; reads of so few are whole."""
_state = {"alone": False, "child": False}


def in_turn(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """As ``spread``, in this process."""
    return [task() for task in tasks]


def spread(tasks: Sequence[Callable[[], T]], waiting: Callable[[], None] | None = None) -> list[T]:
    """What each task gives, in their order. ``waiting`` is called every ``WAIT_S`` while the other process alone still works.

    Tasks must not depend on each other, and change nothing that matters outside; what they give can be handed over
    (``autosbp.handed``). What a task raises is raised here: as if they had run one after the other, the first of those
    that do.
    """
    if not 2 <= len(tasks) <= MAX_TASKS or not _has_room():
        return in_turn(tasks)
    numbers = _queue(len(tasks))
    found: dict[int, T] = {}
    child = _Child.of(tasks, numbers)
    _state["alone"] = True
    try:
        _run(tasks, numbers, found)
        found.update(child.answers(waiting) if child else {})
    finally:
        _state["alone"] = False
        os.close(numbers)
        if child:
            child.end()
    return [found[at] if at in found else task() for at, task in enumerate(tasks)]


class Begun(Generic[T]):
    """A task that another process works on, which may share its own tasks with a third one. See ``begun``."""

    def __init__(self, task: Callable[[], T]) -> None:
        self._task, self._child, self._found = task, None, list[T]()
        if _has_room():
            numbers = _queue(1)
            self._child = _Child.of([task], numbers, shares=True)
            os.close(numbers)

    @property
    def is_beside(self) -> bool:
        """Whether another process works on it."""
        return self._child is not None

    def result(self, waiting: Callable[[], None] | None = None) -> T:
        """What the task gives, or raises; ``waiting`` is called every ``WAIT_S`` until then."""
        if not self._found:
            answers: dict[int, T] = self._child.answers(waiting) if self._child else {}
            self.end()
            self._found.append(answers[0] if answers else self._task())
        return self._found[0]

    def end(self) -> None:
        """Leave no process behind."""
        if self._child:
            self._child.end()
        self._child = None


@contextmanager
def begun(task: Callable[[], T]) -> Iterator[Begun[T]]:
    """``task``, which another process works on from now on, as long as this is open; here and later, when its result is asked
    for, where there is no room for one. What it gives can be handed over (``autosbp.handed``)."""
    found = Begun(task)
    try:
        yield found
    finally:
        found.end()


@contextmanager
def alone() -> Iterator[None]:
    """No other process is made within."""
    before, _state["alone"] = _state["alone"], True
    try:
        yield
    finally:
        _state["alone"] = before


def is_child() -> bool:
    """Whether this process runs tasks for another: only that one tells others of its progress."""
    return _state["child"]


def _has_room() -> bool:
    """Whether there is a second core, and no child at work already."""
    if _state["alone"] or sys.platform != "linux":
        return False
    return len(os.sched_getaffinity(0)) > 1


def _queue(count: int) -> int:
    """A pipe with the numbers of the tasks, which ends behind them."""
    end, begin = os.pipe()
    os.write(begin, b"".join(at.to_bytes(_NUMBER, "big") for at in range(count)))
    os.close(begin)
    return end


def _run(tasks: Sequence[Callable[[], T]], numbers: int, found: dict[int, T]) -> None:
    """Tasks as they come, until there are none, or one raises: it is run again in its turn."""
    while number := os.read(numbers, _NUMBER):
        at = int.from_bytes(number, "big")
        try:
            found[at] = tasks[at]()
        except Exception:
            return


class _Child:
    """The other process. Belongs to the thread that made it."""

    def __init__(self, pid: int, answers: int) -> None:
        self._pid, self._answers = pid, answers

    @staticmethod
    def of(tasks: Sequence[Callable[[], T]], numbers: int, *, shares: bool = False) -> _Child | None:
        """None where the system has no room for it. With ``shares`` it may have a child, too."""
        answers, ours = os.pipe()
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                # Of other threads, whose locks may be held for ever: a child only computes, and takes none of theirs.
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
        """What it gave; nothing where it ended early."""
        parts = []
        while waiting and not _readable(self._answers):
            waiting()
        while part := os.read(self._answers, 1 << 20):
            parts.append(part)
        with suppress(ValueError):  # cut off where it ended
            answers: dict[int, T] = handed.loads(b"".join(parts))
            return answers
        return {}

    def end(self) -> None:
        """Leave nothing behind."""
        os.close(self._answers)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)  # and so what it shares its tasks with
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _readable(descriptor: int) -> bool:
    """Whether there is something to read, or the end, before ``WAIT_S`` is over. Any number of descriptors may be open."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * WAIT_S))


def _serve(tasks: Sequence[Callable[[], T]], numbers: int, answers: int, parent: int, shares: bool) -> None:
    """The child's life. It ends without what a process does at its end: buffers and handlers are the parent's."""
    code = 1
    try:
        end_with_parent(parent)
        gc.disable()  # what it would look at is the parent's, and would be copied
        _state.update(alone=not shares, child=True)
        found: dict[int, T] = {}
        _run(tasks, numbers, found)
        rest = memoryview(handed.dumps(found))
        while rest:
            rest = rest[os.write(answers, rest) :]
        code = 0
    finally:
        os._exit(code)
