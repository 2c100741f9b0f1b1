"""Sleep functions of the async client and of the sync client generated from it."""

from __future__ import annotations

import time

import anyio


async def async_pause(seconds: float) -> None:
    """Sleep without blocking other tasks."""
    await anyio.sleep(seconds)


def pause(seconds: float) -> None:
    """Sleep, blocking the thread."""
    time.sleep(seconds)
