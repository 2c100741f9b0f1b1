"""What ``exact`` claims of its result, as data that ``checker`` can verify from the problem alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.errors import InputError

RELAXATION, ELIMINATION, ENUMERATION, CP_SAT = "relaxation", "elimination", "enumeration", "cp_sat"
CLOSINGS = (RELAXATION, ELIMINATION, ENUMERATION, CP_SAT)
Shift = tuple[int, int, tuple[float, ...], tuple[float, ...]]
"""Variables u and v, and for each value of either what the pair's table gains and the variable loses."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """``assignment`` costs ``cost_s`` and takes ``memory_bytes``, and no assignment within the memory limit costs less
    than ``bound_s``. The proof:

    1. An assignment that fits and costs less than ``relaxed_bound_s`` holds only values in ``left`` (for each variable its
       values in ascending order; None where all are left).
    2. Over these, the least ``cost + price_s_per_byte * (memory - limit)`` is at least ``relaxed_bound_s``: the Lagrangian
       relaxation of the memory limit. The price is 0 without one.
    3. What lies above it up to ``bound_s`` was proved by ``closed_by``: ``elimination``, ``enumeration`` or ``cp_sat`` over the
       values that remained; with ``relaxation`` nothing lies above it.

    ``shifts``, where there are any, show the second at once, for graphs too dense to eliminate: they move costs between
    variables and pairs, so that the least entries of all add up to ``relaxed_bound_s``.
    """

    assignment: tuple[int, ...]
    cost_s: float
    memory_bytes: int
    bound_s: float
    relaxed_bound_s: float
    price_s_per_byte: float
    closed_by: str = RELAXATION
    left: tuple[tuple[int, ...], ...] | None = None
    shifts: tuple[Shift, ...] | None = None

    def document(self) -> dict[str, Any]:
        """As JSON; floats are written so that they read back the same. ``left`` names each distinct list of values once."""
        lists = list(dict.fromkeys(self.left or ()))
        places = {values: place for place, values in enumerate(lists)}
        left = None if self.left is None else {"lists": lists, "of": [places[values] for values in self.left]}
        return {
            "assignment": list(self.assignment),
            "cost_s": self.cost_s,
            "memory_bytes": self.memory_bytes,
            "bound_s": self.bound_s,
            "relaxed_bound_s": self.relaxed_bound_s,
            "price_s_per_byte": self.price_s_per_byte,
            "closed_by": self.closed_by,
            "left": left,
            "shifts": self.shifts,
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Certificate:
        """The inverse of ``document``.

        Raises:
            InputError: a field is missing, unknown or of a wrong type.
        """
        fields = set(cls.__slots__)
        if set(document) != fields:
            raise InputError("certificate", sorted(document), f"the fields {', '.join(sorted(fields))} are needed")
        assignment = _values("assignment", document["assignment"])
        if type(document["memory_bytes"]) is not int:
            raise InputError("certificate.memory_bytes", document["memory_bytes"], "an integer is needed")
        for name in ("cost_s", "bound_s", "relaxed_bound_s", "price_s_per_byte"):
            value = document[name]
            if type(value) not in (int, float) or not math.isfinite(value):
                raise InputError(f"certificate.{name}", value, "a finite number is needed")
        if document["closed_by"] not in CLOSINGS:
            raise InputError("certificate.closed_by", document["closed_by"], f"one of {', '.join(CLOSINGS)} is needed")
        left, shifts = _left(document["left"]), _shifts(document["shifts"])
        return cls(**{**document, "assignment": assignment, "left": left, "shifts": shifts})


def _left(document: Any) -> tuple[tuple[int, ...], ...] | None:
    if document is None:
        return None
    if not isinstance(document, dict) or set(document) != {"lists", "of"} or not isinstance(document["lists"], list):
        raise InputError("certificate.left", document, "null, or an object of lists and of is needed")
    lists = [_values("left.lists", values) for values in document["lists"]]
    places = _values("left.of", document["of"])
    if places and max(places) >= len(lists):
        raise InputError("certificate.left.of", max(places), f"a place among {len(lists)} lists is needed")
    return tuple(lists[place] for place in places)


def _shifts(document: Any) -> tuple[Shift, ...] | None:
    if document is None:
        return None
    if not isinstance(document, list | tuple):
        raise InputError("certificate.shifts", document, "null or a list is needed")
    return tuple(map(_shift, document))


def _shift(document: Any) -> Shift:
    if not isinstance(document, list | tuple) or len(document) != 4:
        raise InputError("certificate.shifts", document, "two variables, and a list of seconds for each, are needed")
    u, v = _values("shifts", document[:2])
    for seconds in document[2:]:
        known = isinstance(seconds, list | tuple) and all(type(each) in (int, float) for each in seconds)
        if not known or not all(map(math.isfinite, seconds)):
            raise InputError("certificate.shifts", seconds, "a list of finite numbers is needed")
    return u, v, tuple(document[2]), tuple(document[3])


def _values(field: str, values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or not all(type(value) is int and value >= 0 for value in values):
        raise InputError(f"certificate.{field}", values, "a list of integers of at least 0 is needed")
    return tuple(values)
