"""Certificate of an ``exact`` result: data that ``checker`` verifies from the problem alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.errors import InputError

RELAXATION, ELIMINATION, ENUMERATION, CP_SAT = "relaxation", "elimination", "enumeration", "cp_sat"
PROOF_METHODS = (RELAXATION, ELIMINATION, ENUMERATION, CP_SAT)
Shift = tuple[int, int, tuple[float, ...], tuple[float, ...]]
"""Variables u and v; per value of each, the amount that moves from the variable's costs to the pair's table."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Proof that no assignment within the memory limit costs less than ``bound_s``.

    ``assignment`` costs ``cost_s`` and takes ``memory_bytes``. The proof has three steps:

    1. An assignment that fits and costs less than ``relaxed_bound_s`` uses only values in ``left`` (per variable, its
       remaining values in ascending order; None if all remain).
    2. Over these values, the least ``cost + price_s_per_byte * (memory - limit)`` is at least ``relaxed_bound_s``: the
       Lagrangian relaxation of the memory limit. The Lagrange multiplier ``price_s_per_byte`` is 0 without a limit.
    3. ``closed_by`` proved the rest up to ``bound_s``: ``elimination``, ``enumeration`` or ``cp_sat`` over the
       remaining values. With ``relaxation``, ``bound_s`` is the relaxed bound.

    For graphs too dense to eliminate, ``shifts`` prove step 2 directly: they move costs between variables and pairs, so
    that the least entries of all tables add up to ``relaxed_bound_s``.
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
        """JSON object. Floats read back bit for bit. ``left`` stores each distinct list of values once."""
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
        """Parse the result of ``document``.

        Raises:
            InputError: a field is missing, unknown or of a wrong type.
        """
        fields = set(cls.__slots__)
        if set(document) != fields:
            raise InputError("certificate", sorted(document), f"expected the fields {', '.join(sorted(fields))}")
        assignment = _values("assignment", document["assignment"])
        if type(document["memory_bytes"]) is not int:
            raise InputError("certificate.memory_bytes", document["memory_bytes"], "expected an integer")
        for name in ("cost_s", "bound_s", "relaxed_bound_s", "price_s_per_byte"):
            value = document[name]
            if type(value) not in (int, float) or not math.isfinite(value):
                raise InputError(f"certificate.{name}", value, "expected a finite number")
        if document["closed_by"] not in PROOF_METHODS:
            raise InputError(
                "certificate.closed_by", document["closed_by"], f"expected one of {', '.join(PROOF_METHODS)}"
            )
        left, shifts = _left(document["left"]), _shifts(document["shifts"])
        return cls(**{**document, "assignment": assignment, "left": left, "shifts": shifts})


def _left(document: Any) -> tuple[tuple[int, ...], ...] | None:
    if document is None:
        return None
    if not isinstance(document, dict) or set(document) != {"lists", "of"} or not isinstance(document["lists"], list):
        raise InputError("certificate.left", document, "expected null, or an object with the fields lists and of")
    lists = [_values("left.lists", values) for values in document["lists"]]
    places = _values("left.of", document["of"])
    if places and max(places) >= len(lists):
        raise InputError("certificate.left.of", max(places), f"expected an index of one of {len(lists)} lists")
    return tuple(lists[place] for place in places)


def _shifts(document: Any) -> tuple[Shift, ...] | None:
    if document is None:
        return None
    if not isinstance(document, list | tuple):
        raise InputError("certificate.shifts", document, "expected null or a list")
    return tuple(map(_shift, document))


def _shift(document: Any) -> Shift:
    if not isinstance(document, list | tuple) or len(document) != 4:
        raise InputError("certificate.shifts", document, "expected two variables, and a list of seconds for each,")
    u, v = _values("shifts", document[:2])
    for seconds in document[2:]:
        known = isinstance(seconds, list | tuple) and all(type(each) in (int, float) for each in seconds)
        if not known or not all(map(math.isfinite, seconds)):
            raise InputError("certificate.shifts", seconds, "expected a list of finite numbers")
    return u, v, tuple(document[2]), tuple(document[3])


def _values(field: str, values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or not all(type(value) is int and value >= 0 for value in values):
        raise InputError(f"certificate.{field}", values, "expected a list of integers of at least 0")
    return tuple(values)
