"""Trials of ops in a child process, which an op may end: native code does not check every size of a stand-in.

One child, a fork that has imported what the ops need, tries op after op. Where it dies, the next one goes on behind the
stand-in that ended it; an op that ends ``MAX_DEATHS`` children stays replicated, and its rule says so.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import select
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, Any

import torch

from autosbp.graph.found import FoundRule, read_rule, rule_to_dict
from autosbp.jsonio import canonical, loads

MAX_DEATHS = 24
"""All kinds of stand-ins of both precisions, at most."""
SILENCE_S = 300.0
"""A child that says nothing for so long hangs: several times what a search may take."""


@dataclass
class Attempts:
    """Counts the stand-ins of an op. The first ``skipped`` are not tried; ``tell`` is told of each that is."""

    skipped: int = 0
    tell: Callable[[int], None] = lambda _: None
    count: int = field(default=0, init=False)

    def next(self) -> bool:
        """Whether the next stand-in is to be tried."""
        self.count += 1
        if self.count > self.skipped:
            self.tell(self.count)
        return self.count > self.skipped


Trial = Callable[[Attempts], FoundRule]


def tried(trials: Sequence[Trial]) -> Iterator[FoundRule]:
    """The rule that each trial finds, in order; what a trial raises or warns of is raised or warned of here."""
    at, skipped, deaths, ending = 0, 0, 0, ""
    while at < len(trials):
        with _Child(trials[at:], skipped) as child:
            for answer in child.answers():
                if "try" in answer:
                    skipped = int(answer["try"])
                    continue
                for sentence in answer.get("warnings", ()):
                    warnings.warn(sentence, RuntimeWarning, stacklevel=2)
                if "rule" in answer:
                    rule = read_rule(answer["rule"], "rule")
                    died = deaths and not rule.options and not rule.random
                    yield replace(rule, reason=_reason(ending)) if died else rule
                elif "unable" in answer:  # autograd of this process cannot be forked
                    yield from (trial(Attempts()) for trial in trials[at:])
                    return
                else:
                    yield trials[at](Attempts(child.skipped))  # raises the same, for the child did not die of it
                at, skipped, deaths = at + 1, 0, 0
                child.skipped = 0
        if at < len(trials):
            deaths, ending = deaths + 1, child.ending
            if deaths >= MAX_DEATHS or not skipped:
                yield FoundRule((), _reason(ending))
                at, skipped, deaths = at + 1, 0, 0


def _reason(ending: str) -> str:
    return f"ends the process that tries it ({ending})"


class _Child:
    """A fork that runs the trials; ``ending`` says how it ended."""

    def __init__(self, trials: Sequence[Trial], skipped: int) -> None:
        self.skipped = skipped
        self.ending = ""
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child uses one thread alone
            self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(reading)
                with os.fdopen(writing, "wb") as told:
                    _run(trials, skipped, told)
            finally:
                os._exit(0)
        os.close(writing)
        self._reading: IO[bytes] = os.fdopen(reading, "rb", buffering=0)

    def __enter__(self) -> _Child:
        return self

    def answers(self) -> Iterator[dict[str, Any]]:
        """What the child says, until it ends or is silent for too long."""
        rest = b""
        while True:
            if not select.select([self._reading], [], [], SILENCE_S)[0]:
                self.ending = f"no answer in {SILENCE_S:g} s"
                return
            chunk = self._reading.read(65536)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield loads(line, "the trial of an op")

    def __exit__(self, *_: object) -> None:
        self._reading.close()
        if self.ending:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        status = os.waitpid(self._pid, 0)[1]
        if not self.ending:
            code = os.waitstatus_to_exitcode(status)
            self.ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _run(trials: Sequence[Trial], skipped: int, told: IO[bytes]) -> None:
    """The child: a line of JSON for each stand-in that is tried, and one for each trial."""
    faulthandler.disable()  # a crash here is an answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # so is what the allocator says of it
    torch.set_num_threads(1)  # threads are not forked

    def tell(answer: dict[str, object]) -> None:
        told.write(canonical(answer).strip() + b"\n")
        told.flush()

    try:
        torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        tell({"unable": True})
        return
    for trial in trials:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                rule = trial(Attempts(skipped, lambda count: tell({"try": count})))
            except Exception:
                tell({"error": True})
            else:
                known = [str(one.message) for one in said if one.category is RuntimeWarning]
                tell({"rule": rule_to_dict(rule), "warnings": known})
        skipped = 0
