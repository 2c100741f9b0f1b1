"""Every error that autosbp raises on purpose, as one tree.

AutosbpError
|-- InputError            a value that the caller gave is wrong; exit 2, HTTP 422
|   `-- GraphError        a model graph breaks a rule of the IR
|-- UnsupportedError      what cannot be captured or lowered, or not on this machine; exit 2, HTTP 422
|-- InfeasibleError       no strategy meets the limits; exit 3, HTTP 422
|-- CertificateError      a certificate of a search claims what does not hold; exit 1
|-- UnverifiedError       a certificate of a search could not be verified to its end; exit 1
|-- CalibrationError      a measurement failed; exit 4
|-- TrialError            a trial run failed; exit 4
`-- ServiceError          the service cannot be reached or refused; exit 5
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_LONGEST_FIELD = 300
_MOST_BITS = 4096  # Python writes no integers of more than 4,300 digits


class AutosbpError(Exception):
    """Base of the tree. ``exit_code`` is what the command line returns."""

    exit_code = 1


class InputError(AutosbpError):
    """A value from outside is wrong.

    Args:
        field: path of the value, such as ``levels[0].count``.
        value: what was given.
        limit: what would have been accepted, as words.
    """

    exit_code = 2

    def __init__(self, field: str, value: object, limit: str) -> None:
        self.field = field if len(field) <= _LONGEST_FIELD else f"{field[: _LONGEST_FIELD - 3]}..."
        self.value, self.limit = value, limit
        super().__init__(f"{self.field}: {in_short(value)} is not accepted; {limit}")


def printable(text: str) -> str:
    """The text for a terminal: what is no printable character, such as one that moves the cursor or turns the direction of
    writing, as its escape."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def in_short(value: object, room: int = 200) -> str:
    """``repr(value)``, or its beginning and dots where that is longer than ``room``. Takes no longer for a large value: one of
    YAML can hold a list in many places, so that its ``repr`` would fill the memory."""
    text = "".join(_pieces(value, [room]))
    return text if len(text) <= room else text[: room - 3] + "..."


def _pieces(value: object, room: list[int]) -> Iterator[str]:
    """Parts of ``repr(value)``, until there is no ``room`` left."""
    if isinstance(value, dict):
        yield from _members("{", ((key, ": ", item) for key, item in value.items()), "}", room)
    elif type(value) is list:
        yield from _members("[", ((item,) for item in value), "]", room)
    elif type(value) is tuple:
        yield from _members("(", ((item,) for item in value), ",)" if len(value) == 1 else ")", room)
    elif isinstance(value, (str, bytes)):
        yield from _taken(repr(value[: max(room[0], 0) + 1]), room)
    elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
        yield from _taken(f"an integer of {value.bit_length()} bits", room)
    else:
        yield from _taken(repr(value), room)


def _members(opening: str, members: Iterable[tuple[object, ...]], closing: str, room: list[int]) -> Iterator[str]:
    yield from _taken(opening, room)
    for index, parts in enumerate(members):
        if room[0] < 0:
            return
        yield from _taken(", " if index else "", room)
        yield from _pieces(parts[0], room)
        for sign, item in zip(parts[1::2], parts[2::2], strict=True):
            yield from _taken(str(sign), room)
            yield from _pieces(item, room)
    yield from _taken(closing, room)


def _taken(text: str, room: list[int]) -> Iterator[str]:
    room[0] -= len(text)
    yield text


class GraphError(InputError):
    """A model graph is malformed: unknown op, cycle, wrong version, contradictory shape."""


class UnsupportedError(AutosbpError):
    """A construct that capture, a rule or the executor cannot take; says where it is and what to do."""

    exit_code = 2


class InfeasibleError(AutosbpError):
    """No strategy satisfies the constraints.

    Args:
        constraint: name of the violated constraint, such as ``memory_limit_bytes``.
        limit: its value.
        needed: the least value that would do, where known; of what was ``found`` by search, less may do, too.
        conflict: constraints that exclude each other, such as ``stages=4``: without any one of them there is a strategy.
    """

    exit_code = 3

    def __init__(
        self,
        constraint: str,
        limit: float | str,
        needed: float | None,
        detail: str = "",
        conflict: tuple[str, ...] = (),
        *,
        found: bool = False,
    ) -> None:
        self.constraint, self.limit, self.needed = constraint, limit, needed
        self.detail, self.conflict, self.found = detail, conflict, found
        parts = [f"{constraint} = {limit if isinstance(limit, str) else _number(limit)}", detail]
        if needed is not None:
            parts[0] += f"; {_number(needed)} would do" if found else f"; at least {_number(needed)} is needed"
        if len(conflict) > 1:
            parts.append(f"{' and '.join(conflict)} exclude each other: without any one of them there is a plan")
        elif conflict:
            parts.append(f"without {conflict[0]} there is a plan")
        super().__init__(f"infeasible: {'. '.join(part for part in parts if part)}")


def _number(value: float) -> str:
    """Whole numbers to the last digit: what is needed is to be given as it is read."""
    return str(int(value)) if abs(value) < 2**63 and value == int(value) else f"{value:.6g}"


class CertificateError(AutosbpError):
    """A certificate of a search is wrong.

    Args:
        field: of the certificate.
        claimed: what it says there.
        found: what holds, as words.
    """

    def __init__(self, field: str, claimed: object, found: str) -> None:
        self.field, self.claimed, self.found = field, claimed, found
        super().__init__(f"certificate.{field}: {claimed!r} is claimed; {found}")


class UnverifiedError(AutosbpError):
    """Nothing in a certificate is known to be wrong, but its bound is verified only up to ``proved_s``."""

    def __init__(self, proved_s: float, detail: str) -> None:
        self.proved_s = proved_s
        super().__init__(f"not verified beyond a bound of {proved_s!r} s: {detail}")


class CalibrationError(AutosbpError):
    """A measurement of the cluster failed; names the measurement."""

    exit_code = 4


class TrialError(AutosbpError):
    """A trial run failed; carries the end of the ranks' log."""

    exit_code = 4


class ServiceError(AutosbpError):
    """The service cannot be reached, or it answered with a problem."""

    exit_code = 5
