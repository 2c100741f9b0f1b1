"""Every error that autosbp raises on purpose, as one tree.

AutosbpError
|-- InputError            a value that the caller gave is wrong; exit 2, HTTP 422
|   `-- GraphError        a model graph breaks a rule of the IR
|-- UnsupportedError      a construct that cannot be captured, lowered or run on this machine; exit 2, HTTP 422
|-- InfeasibleError       no strategy meets the limits; exit 3, HTTP 422
|-- CertificateError      a search certificate makes a false claim; exit 1
|-- UnverifiedError       a search certificate could not be verified completely; exit 1
|-- CalibrationError      a measurement failed; exit 4
|-- TrialError            a trial run failed; exit 4
`-- ServiceError          the service cannot be reached or refused; exit 5
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_MAX_FIELD_LENGTH = 300
_MAX_INT_BITS = 4096  # Python converts no integer of more than 4,300 digits to text


class AutosbpError(Exception):
    """Base class of all errors of autosbp. ``exit_code`` is the exit status of the command line."""

    exit_code = 1


class InputError(AutosbpError):
    """A value from outside is wrong.

    Args:
        field: path of the value, such as ``levels[0].count``.
        value: the value that was given.
        limit: the accepted values, in words.
    """

    exit_code = 2

    def __init__(self, field: str, value: object, limit: str) -> None:
        self.field = field if len(field) <= _MAX_FIELD_LENGTH else f"{field[: _MAX_FIELD_LENGTH - 3]}..."
        self.value, self.limit = value, limit
        super().__init__(f"{self.field}: {abbreviated_repr(value)} is invalid: {limit}")


def printable(text: str) -> str:
    """Replace characters that are not printable (cursor movement, text direction) by their escapes, for a terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def abbreviated_repr(value: object, room: int = 200) -> str:
    """``repr(value)``, cut to ``room`` characters.

    The time does not grow with the value: aliases in YAML can put one list in so many places that its ``repr`` would
    fill the memory.
    """
    text = "".join(_pieces(value, [room]))
    return text if len(text) <= room else text[: room - 3] + "..."


def _pieces(value: object, room: list[int]) -> Iterator[str]:
    """Yield parts of ``repr(value)`` until ``room`` is used up."""
    if isinstance(value, dict):
        yield from _members("{", ((key, ": ", item) for key, item in value.items()), "}", room)
    elif type(value) is list:
        yield from _members("[", ((item,) for item in value), "]", room)
    elif type(value) is tuple:
        yield from _members("(", ((item,) for item in value), ",)" if len(value) == 1 else ")", room)
    elif isinstance(value, (str, bytes)):
        yield from _consume(repr(value[: max(room[0], 0) + 1]), room)
    elif isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
        yield from _consume(f"an integer of {value.bit_length()} bits", room)
    else:
        yield from _consume(repr(value), room)


def _members(opening: str, members: Iterable[tuple[object, ...]], closing: str, room: list[int]) -> Iterator[str]:
    yield from _consume(opening, room)
    for index, parts in enumerate(members):
        if room[0] < 0:
            return
        yield from _consume(", " if index else "", room)
        yield from _pieces(parts[0], room)
        for sign, item in zip(parts[1::2], parts[2::2], strict=True):
            yield from _consume(str(sign), room)
            yield from _pieces(item, room)
    yield from _consume(closing, room)


def _consume(text: str, room: list[int]) -> Iterator[str]:
    room[0] -= len(text)
    yield text


class GraphError(InputError):
    """A model graph is malformed: unknown op, cycle, wrong version, contradictory shape."""


class UnsupportedError(AutosbpError):
    """A construct that capture, an op rule or the executor cannot handle; the message says where it is and what to do."""

    exit_code = 2


class InfeasibleError(AutosbpError):
    """No strategy satisfies the constraints.

    Args:
        constraint: name of the violated constraint, such as ``memory_limit_bytes``.
        limit: its value.
        needed: the least sufficient value, where known.
        detail: further text of the message.
        conflict: constraints that exclude each other, such as ``stages=4``: dropping any one of them makes planning
            feasible.
        found: whether a search found ``needed``, so that it suffices but a smaller value may, too.
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
            parts[0] += f"; {_number(needed)} is sufficient" if found else f"; at least {_number(needed)} is required"
        if len(conflict) > 1:
            parts.append(
                f"{' and '.join(conflict)} exclude each other: dropping any one of them makes planning feasible"
            )
        elif conflict:
            parts.append(f"dropping {conflict[0]} makes planning feasible")
        super().__init__(f"infeasible: {'. '.join(part for part in parts if part)}")


def _number(value: float) -> str:
    """Whole numbers with all digits, because the user enters the needed value as it is shown."""
    return str(int(value)) if abs(value) < 2**63 and value == int(value) else f"{value:.6g}"


class CertificateError(AutosbpError):
    """A search certificate is wrong.

    Args:
        field: field of the certificate.
        claimed: its value.
        found: what is true instead, in words.
    """

    def __init__(self, field: str, claimed: object, found: str) -> None:
        self.field, self.claimed, self.found = field, claimed, found
        super().__init__(f"certificate.{field}: {claimed!r} is wrong: {found}")


class UnverifiedError(AutosbpError):
    """No error was found in a certificate, but its lower bound is verified only up to ``proved_s`` seconds."""

    def __init__(self, proved_s: float, detail: str) -> None:
        self.proved_s = proved_s
        super().__init__(f"verified only up to a bound of {proved_s!r} s: {detail}")


class CalibrationError(AutosbpError):
    """A measurement of the cluster failed; the message names the measurement."""

    exit_code = 4


class TrialError(AutosbpError):
    """A trial run failed; the message holds the end of the ranks' log."""

    exit_code = 4


class ServiceError(AutosbpError):
    """The service cannot be reached, or answered with a problem document."""

    exit_code = 5
