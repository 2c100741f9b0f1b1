"""Heartbeats of ranks in the job's store, with each rank's last position in the training run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from autosbp.utils.formatting import num_bytes

ENDED = "ended"
"""``Heartbeat.state`` of a rank that has finished its work."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat of one rank.

    Args:
        number: sequence number.
        process: process id.
        host: host name.
        state: ``running`` or ``ENDED``.
        step: training step, from 0.
        kind, num_bytes, ranks: the rank's last collective; ``kind`` is "" before the first one.
    """

    number: int
    process: int
    host: str
    state: str = "running"
    step: int = 0
    kind: str = ""
    num_bytes: int = 0
    ranks: tuple[int, ...] = ()

    @property
    def position(self) -> str:
        """The rank's place in the training run, in words."""
        return position(self.step, self.kind, self.num_bytes, self.ranks)

    def write(self, store: Any, rank: int) -> None:
        """Replace the rank's heartbeat in a ``torch.distributed`` store."""
        store.set(_key(rank), json.dumps(asdict(self)))

    @classmethod
    def read(cls, store: Any, rank: int) -> Heartbeat | None:
        """The rank's newest heartbeat; None if there is none yet."""
        if not store.check([_key(rank)]):
            return None
        fields = json.loads(store.get(_key(rank)))
        return cls(**{**fields, "ranks": tuple(fields["ranks"])})


def position(step: int, kind: str, size: int, ranks: Sequence[int]) -> str:
    """Describe a position in a training run: the step, from 0, and the last collective."""
    if not kind:
        return f"in step {step}, before its first collective"
    return f"in step {step}, after it issued {kind} of {num_bytes(size)} over ranks {', '.join(map(str, ranks))}"


def last_position(store: Any, rank: int) -> str:
    """``, last heard ...`` of a rank; "" if it never sent a heartbeat."""
    with suppress(RuntimeError, ValueError):  # a store whose server is gone
        found = Heartbeat.read(store, rank)
        return f", last heard {found.position}" if found is not None else ""
    return ""


def _key(rank: int) -> str:
    """Key of a rank's heartbeat; has the restart count, because a restarted job keeps its store."""
    return f"autosbp/heartbeat/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{rank}"
