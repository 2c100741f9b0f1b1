"""Jobs of a service that do not outlive the command that asked for them."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from autosbp.cli._run import note
from autosbp.errors import AutosbpError

if TYPE_CHECKING:
    from autosbp.client import Client, Job

Submit = Callable[[str], "Job"]
"""Queues a job under the idempotency key that it is given."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_UNDISTURBED_S = 10.0


@contextmanager
def submitted(client: Client, submit: Submit) -> Iterator[Job]:
    """The job that ``submit`` queues. However the block or the submission is left before its end, by an error as by a signal,
    the job is cancelled. A submission whose answer is not there is sent again, under the same key, to learn which job
    that is."""
    from autosbp.client import LostAnswerError, new_key

    key, job = new_key(), None
    try:
        job = submit(key)
        yield job
    except BaseException as error:
        if job is not None or not isinstance(error, AutosbpError) or isinstance(error, LostAnswerError):
            with undisturbed():
                _cancel(client, job, lambda: submit(key))
        raise


def _cancel(client: Client, job: Job | None, ask_again: Callable[[], Job]) -> None:
    """Cancel a job that has not ended, and say so; or say that it may go on."""
    from autosbp.client import ConflictError

    try:
        job = ask_again() if job is None else job
        client.cancel(job.id)
        note(f"{job.kind} {job.id} is cancelled")
    except ConflictError:
        return  # it has ended
    except AutosbpError as error:
        what = "what was asked for" if job is None else f"{job.kind} {job.id}"
        note(f"warning: {what} could not be cancelled and may go on ({error}); POST /v1/jobs/ID:cancel ends it")


@contextmanager
def undisturbed(most_s: float = _UNDISTURBED_S) -> Iterator[None]:
    """Hold off signals that would end the command, for so many seconds at most: who ends a step of CI sends several."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    begun_s = time.monotonic()

    def hold_off(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if time.monotonic() - begun_s > most_s:
            sys.exit(128 + number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, hold_off)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
