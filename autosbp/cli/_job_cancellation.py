"""Cancel a service's jobs when the command that submitted them ends early."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from autosbp.cli._exit_codes import note
from autosbp.errors import AutosbpError

if TYPE_CHECKING:
    from autosbp.client import Client, Job

Submit = Callable[[str], "Job"]
"""Queues a job under the given idempotency key."""
_TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MAX_SIGNAL_DELAY_S = 10.0


@contextmanager
def cancel_on_exit(client: Client, submit: Submit) -> Iterator[Job]:
    """Submit a job, yield it, and cancel it if the block or the submission ends by an exception or a signal.

    If the answer to the submission was lost, the submission is repeated under the same key to learn the job's id.
    """
    from autosbp.client import LostAnswerError, new_key

    key, job = new_key(), None
    try:
        job = submit(key)
        yield job
    except BaseException as error:
        if job is not None or not isinstance(error, AutosbpError) or isinstance(error, LostAnswerError):
            with ignoring_termination_signals():
                _cancel(client, job, lambda: submit(key))
        raise


def _cancel(client: Client, job: Job | None, ask_again: Callable[[], Job]) -> None:
    """Cancel a job if it is still active and print so, or warn that it may continue."""
    from autosbp.client import ConflictError

    try:
        job = ask_again() if job is None else job
        client.cancel(job.id)
        note(f"cancelled {job.kind} {job.id}")
    except ConflictError:
        return  # the job has already ended
    except AutosbpError as error:
        what = "the request" if job is None else f"{job.kind} {job.id}"
        note(
            f"warning: could not cancel {what}, which may still be running ({error}); cancel it with POST "
            "/v1/jobs/ID:cancel"
        )


@contextmanager
def ignoring_termination_signals(most_s: float = _MAX_SIGNAL_DELAY_S) -> Iterator[None]:
    """Ignore termination signals for up to ``most_s`` seconds: CI systems send several when they end a step."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    begun_s = time.monotonic()

    def hold_off(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if time.monotonic() - begun_s > most_s:
            sys.exit(128 + number)

    before = {number: signal.getsignal(number) for number in _TERMINATION_SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, hold_off)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
