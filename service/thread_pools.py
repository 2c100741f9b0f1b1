"""Thread pools per kind of work, so that no kind blocks another. Each belongs to one event loop."""

from __future__ import annotations

from asyncio import Lock, Task, create_task, shield
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from autosbp.service.auth.authentication import too_many

Result = TypeVar("Result")
_RETRY_S = 5.0


class ThreadPool:
    """``num`` threads shared by all tenants; each tenant may have ``most`` calls running or waiting."""

    def __init__(self, num: int, most: int) -> None:
        self._num, self._most = num, most
        self._calls: Counter[str] = Counter()

    async def run(self, tenant: str, work: Callable[[], Result]) -> Result:
        """Run ``work`` in a thread and return its result; raise ``ProblemError`` 429 if the tenant has too many calls."""
        if self._calls[tenant] >= self._most:
            raise too_many(_RETRY_S, f"{self._most} requests of this tenant are waiting for the same resource")
        self._calls[tenant] += 1
        try:
            return await to_thread.run_sync(work, limiter=self._limiter)
        finally:
            self._calls[tenant] -= 1
            if not self._calls[tenant]:
                del self._calls[tenant]

    @cached_property
    def _limiter(self) -> CapacityLimiter:
        return CapacityLimiter(self._num)


class CoalescingThread:
    """A thread for one question: all callers that ask before it starts share its answer."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._next: Task[Any] | None = None

    async def run(self, question: Callable[[], Result]) -> Result:
        """Run ``question`` and return or raise what it does."""
        if self._next is None:
            self._next = create_task(self._run(question))
        answer: Result = await shield(self._next)
        return answer

    async def _run(self, question: Callable[[], Result]) -> Result:
        async with self._lock:
            self._next = None
            return await to_thread.run_sync(question, limiter=self._limiter)

    @cached_property
    def _limiter(self) -> CapacityLimiter:
        return CapacityLimiter(1)
