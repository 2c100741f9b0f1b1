"""Trials of ops in a child process, because native code does not check all sizes and may crash.

One child, a fork that has imported what the ops need, tries op after op, and counts an op's runs in shared memory. If
it dies, another child tries the same op again: it rejects the fatal run as if the op had raised, as well as any later
run whose shapes fail in the op's decomposition, where Python checks them. The discovered rule relies on all other runs.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from mmap import mmap
from typing import IO, Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.utils._pytree import tree_map

from autosbp.discovery._call import run_hook
from autosbp.graph.discovered_rules import DiscoveredRule, read_rule, rule_to_dict
from autosbp.utils.forking import drop_privileges
from autosbp.utils.json_io import canonical, loads

MAX_DEATHS = 64
"""Maximum number of children that one op may kill before it stays whole."""
SILENCE_S = 300.0
"""Seconds without an answer after which a child counts as hung: several times the limit of a search."""

Trial = Callable[[], DiscoveredRule]


class _Runs:
    """Counts the runs of an op in memory shared with the parent, and rejects those that killed a process."""

    def __init__(self, refused: frozenset[int]) -> None:
        self.refused = refused
        self._shared = mmap(-1, 8)
        self._known: dict[str, bool] = {}

    @property
    def count(self) -> int:
        return int.from_bytes(self._shared[:8], "little")

    def begin(self) -> None:
        """Start to count another op, without rejected runs."""
        self.refused = frozenset()
        self._shared[:8] = bytes(8)

    def next(self, op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Count a run; raises ``RuntimeError`` if it is rejected."""
        count = self.count + 1
        self._shared[:8] = count.to_bytes(8, "little")
        if count in self.refused:
            raise RuntimeError("crashes the process that runs it")
        # Runs before the first fatal one have completed in an earlier child.
        if self.refused and count > min(self.refused) and not self._fits(op, args, kwargs):
            raise RuntimeError("its shapes do not fit")

    def _fits(self, op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether shapes pass through the op on meta tensors; if that is not implemented, they count as fitting."""
        shapes = tree_map(
            lambda value: tuple(value.shape) if isinstance(value, torch.Tensor) else value, [args, kwargs]
        )
        key = str(shapes)
        if key not in self._known:
            try:
                with enable_python_dispatcher(), torch.no_grad():
                    op(*tree_map(_without_values, args), **tree_map(_without_values, kwargs))
                self._known[key] = True
            except NotImplementedError:
                self._known[key] = True
            except Exception:  # ops raise all kinds of exceptions
                self._known[key] = False
        return self._known[key]


def _without_values(value: Any) -> Any:
    return value.detach().to("meta") if isinstance(value, torch.Tensor) else value


def run_trials(trials: Sequence[Trial]) -> Iterator[DiscoveredRule]:
    """The rule that each trial finds, in order; re-raises its exceptions and repeats its warnings here."""
    at, refused, ending = 0, frozenset[int](), ""
    while at < len(trials):
        with _Child(trials[at:], refused) as child:
            for answer in child.answers():
                for sentence in answer.get("warnings", ()):
                    warnings.warn(sentence, RuntimeWarning, stacklevel=2)
                if "rule" in answer:
                    rule = read_rule(answer["rule"], "rule")
                    died = refused and not rule.options and not rule.random
                    yield replace(rule, reason=_reason(ending)) if died else rule
                elif "unable" in answer:  # the parent has used autograd, whose threads cannot be forked
                    yield from (trial() for trial in trials[at:])
                    return
                else:
                    with run_hook(_Runs(refused).next):
                        yield trials[at]()  # raises here too; safe, as the child survived it
                at, refused = at + 1, frozenset()
        if at < len(trials):
            refused, ending = refused | {child.runs.count}, child.ending
            if len(refused) > MAX_DEATHS or 0 in refused:
                yield DiscoveredRule((), _reason(ending))
                at, refused = at + 1, frozenset()


def _reason(ending: str) -> str:
    return f"crashes the process that runs it ({ending})"


class _Child:
    """A fork that runs the trials; ``ending`` says how it ended, ``runs`` during which run."""

    def __init__(self, trials: Sequence[Trial], refused: frozenset[int]) -> None:
        self.runs, self.ending = _Runs(refused), ""
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child uses only one thread
            self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(reading)
                with os.fdopen(writing, "wb") as told:
                    _run(trials, self.runs, told)
            finally:
                os._exit(0)
        os.close(writing)
        self._reading: IO[bytes] = os.fdopen(reading, "rb", buffering=0)

    def __enter__(self) -> _Child:
        return self

    def answers(self) -> Iterator[dict[str, Any]]:
        """The child's answers, until it ends or is silent for too long."""
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


def _run(trials: Sequence[Trial], runs: _Runs, told: IO[bytes]) -> None:
    """The child's main function: sends one line of JSON for each trial before the next one begins."""
    faulthandler.disable()  # a crash here is a result
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # likewise what the allocator prints about it
    drop_privileges(told.fileno())
    torch.set_num_threads(1)  # a fork has no threads of its parent

    def tell(answer: dict[str, object]) -> None:
        told.write(canonical(answer).strip() + b"\n")
        told.flush()

    try:
        torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        tell({"unable": True})
        return
    for trial in trials:
        with warnings.catch_warnings(record=True) as said, run_hook(runs.next):
            warnings.simplefilter("always")
            try:
                rule = trial()
            except Exception:
                tell({"error": True})
            else:
                known = [str(one.message) for one in said if one.category is RuntimeWarning]
                tell({"rule": rule_to_dict(rule), "warnings": known})
        runs.begin()
