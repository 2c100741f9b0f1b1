"""Stand-ins: calls with small tensors that have the same layouts, which makes discovery fast.

Equal sizes stay equal. If the op rejects a stand-in, or its output shapes do not correspond, the next kind is tried:
integer attributes that are sizes shrink too; then sums stay sums; or attributes that divide a size, such as a number of
heads, still divide it; or all divisors and products are preserved; finally the real sizes, if they are small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from math import prod
from typing import Any

from autosbp.discovery._call import Call, Tensor
from autosbp.discovery._samples import Undiscoverable, samples
from autosbp.graph.int_attributes import integer_attributes

UNITS = (6, 2)
"""Sizes are multiples of the first unit that keeps the stand-in small enough; parts are tried by 2 and by 3."""
MAX_ELEMENTS = 2**19
"""Maximum number of elements of all tensors of a stand-in."""
MAX_MULTIPLE = 4
"""Maximum ratio of a size that stays a multiple of another one."""
Shapes = Sequence[tuple[int, ...]]
Sizes = Mapping[int, int]


@dataclass(frozen=True)
class StandInKind:
    """One way to choose stand-in sizes.

    ``assign(values, attributes, unit, first)`` maps ascending sizes to multiples of ``unit``. Integer attributes of at
    least ``least`` count as sizes (None: none do) if they equal one or, with ``divisors``, divide one.
    """

    assign: Callable[[Sequence[int], frozenset[int], int, int], dict[int, int]]
    least: int | None
    divisors: bool = False


@dataclass(frozen=True)
class StandIn:
    """A call to search in, and one of other sizes to confirm the result (None: the sizes are the real ones).

    ``sizes`` maps real sizes to those of ``call``, and integer attributes of at least ``least`` (None: none of them).
    """

    call: Call
    confirmation_call: Call | None
    sizes: Sizes
    least: int | None

    def with_doubled_size(self, value: int, *, multiples: bool = False) -> Call:
        """The call with the stand-in of real size ``value`` doubled, optionally with its small multiples."""
        sizes = {self.sizes[key]: size for key, size in _double_size(self.sizes, value, multiples=multiples).items()}
        return resized(self.call, sizes, self.least)


def with_dtypes(stand_in: StandIn, call: Call) -> StandIn:
    """The stand-in in the dtypes of another call of the op."""

    def cast(one: Call) -> Call:
        pairs = zip(one.tensors, call.tensors, strict=True)
        return replace(one, tensors=tuple(replace(spec, dtype=own.dtype) for spec, own in pairs))

    return replace(
        stand_in,
        call=cast(stand_in.call),
        confirmation_call=stand_in.confirmation_call and cast(stand_in.confirmation_call),
    )


def stand_in(call: Call, outputs: Shapes, real: tuple[Call, Shapes] | None = None) -> StandIn:
    """The first stand-in that the op accepts, for a call with these output shapes.

    Args:
        real: call to use if the op rejects all stand-ins, and its output shapes; by default ``call`` and ``outputs``.

    Raises:
        Undiscoverable: the op rejects all stand-ins, and the real call is too large or fails.
    """
    failure = Undiscoverable("")
    for kind, unit in product(KINDS, UNITS):
        values, numbers = _values(call, outputs, kind)
        sizes, others = (kind.assign(values, numbers, unit, first) for first in (1, 2))
        small, large = resized(call, sizes, kind.least), resized(call, others, kind.least)
        if num_elements(large) > MAX_ELEMENTS:
            continue
        try:
            _check(small, outputs, sizes)
            _check(large, outputs, others)
        except Undiscoverable as error:
            failure = failure if str(failure) else error
            continue
        return StandIn(small, large, sizes, kind.least)
    last, shapes = real or (call, outputs)
    if num_elements(last) > MAX_ELEMENTS:
        raise Undiscoverable(f"cannot be tested on small inputs: it {str(failure) or 'has too many dims'}")
    _check(last, shapes, {})
    return StandIn(last, None, {}, None)


def _check(call: Call, outputs: Shapes, sizes: Sizes) -> None:
    """Check that the op runs with outputs of the expected sizes; raises ``Undiscoverable``."""
    (sample,) = samples(call, 1)
    shapes = [tuple(out.shape) for out in sample.outputs]
    wanted = [tuple(sizes.get(size, size) for size in shape) for shape in outputs]
    if shapes != wanted:
        raise Undiscoverable(f"returns shapes {shapes} instead of {wanted}")


def resized(call: Call, sizes: Sizes, least: int | None) -> Call:
    """The call with tensor sizes, and integer attributes of at least ``least``, replaced according to ``sizes``."""

    def tensor(spec: Tensor) -> Tensor:
        high = spec.high if spec.high is None else min(spec.high, sizes.get(spec.high, max(sizes.values(), default=2)))
        return replace(spec, shape=tuple(sizes.get(size, size) for size in spec.shape), high=high)

    def number(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(number(item) for item in arg)
        return sizes.get(arg, arg) if least is not None and type(arg) is int and arg >= least else arg

    return replace(
        call,
        args=number(call.args),
        kwargs={key: number(arg) for key, arg in call.kwargs.items()},
        tensors=tuple(tensor(spec) for spec in call.tensors),
    )


def num_elements(call: Call) -> int:
    """Elements of all tensor arguments."""
    return sum(prod(spec.shape) for spec in call.tensors)


def _values(call: Call, outputs: Shapes, kind: StandInKind) -> tuple[list[int], frozenset[int]]:
    """The distinct sizes above 1, ascending, and which of them are attributes."""
    found = {size for shape in (*(spec.shape for spec in call.tensors), *outputs) for size in shape if size > 1}
    numbers = {
        value
        for _, value in integer_attributes(call.args, call.kwargs)
        if kind.least is not None and value >= kind.least
    }
    if kind.divisors:
        found |= {value for value in numbers if any(size % value == 0 for size in found)}
    return sorted(found), frozenset(numbers & found)


def _distinct(values: Sequence[int], _: frozenset[int], unit: int, first: int) -> dict[int, int]:
    """Multiples of ``unit`` in order, starting with the ``first``."""
    return {value: unit * (at + first) for at, value in enumerate(values)}


def _summed(values: Sequence[int], _: frozenset[int], unit: int, first: int) -> dict[int, int]:
    """Like ``_distinct``, but sums of two sizes stay sums."""
    found: dict[int, int] = {}
    for value in values:
        pair = next(((one, value - one) for one in found if value - one in found), None)
        found[value] = unit * (len(found) + first) if pair is None else found[pair[0]] + found[pair[1]]
    return found


def _grouped(values: Sequence[int], numbers: frozenset[int], unit: int, first: int) -> dict[int, int]:
    """Like ``_distinct``, but a multiple of an attribute stays one.

    Its cofactor becomes the stand-in of a size that divides the cofactor, if there is one.
    """
    found: dict[int, int] = {}
    for value in values:
        group = max((number for number in numbers if number < value and value % number == 0), default=0)
        if not group:
            found[value] = unit * (len(found) + first)
            continue
        rest = value // group
        divisor = max((size for size in found if rest % size == 0 and size not in numbers), default=0)
        if divisor:
            found[value] = found[group] * found[divisor] * min(rest // divisor, 2)
        else:
            found[value] = next(size for size in count(2 * found[group], found[group]) if size not in found.values())
    return found


def _related(values: Sequence[int], _: frozenset[int], unit: int, first: int) -> dict[int, int]:
    """Like ``_distinct``, but products of two sizes stay products, and divisors of a size stay divisors."""
    found: dict[int, int] = {}
    last = unit * (first - 1)
    for value in values:
        pair = _factors(value, found)
        if pair is not None:
            found[value] = found[pair[0]] * found[pair[1]]
        else:
            divisors = [small for size, small in found.items() if value % size == 0]
            candidate = last + unit - last % unit
            while any(candidate % divisor for divisor in divisors):
                candidate += unit
            found[value] = candidate
        last = max(last, found[value])
    return found


def _multiplied(values: Sequence[int], _: frozenset[int], unit: int, first: int) -> dict[int, int]:
    """Like ``_distinct``, but twice to four times a size stays that; sizes up to four are kept.

    Examples are the gates of a recurrent layer or its two directions; small sizes count layers or directions.
    """
    found: dict[int, int] = {}
    last = unit * (first - 1)
    for value in (value for value in values if value > MAX_MULTIPLE):
        base = next((size for size in reversed(found) if value % size == 0 and value // size <= MAX_MULTIPLE), None)
        found[value] = last + unit - last % unit if base is None else found[base] * (value // base)
        last = max(last, found[value])
    return found


def _double_size(sizes: Sizes, value: int, *, multiples: bool) -> dict[int, int]:
    """The sizes with the stand-in of ``value`` doubled.

    Products of two sizes stay products; with ``multiples``, small multiples of ``value`` double too.
    """
    grows = {value}
    if multiples:
        grows |= {value * by for by in range(2, MAX_MULTIPLE + 1) if sizes.get(value * by) == sizes[value] * by}
    found = {key: small * (2 if key in grows else 1) for key, small in sizes.items()}
    for key in sorted(found):
        pair = _factors(key, sizes)
        if pair is not None and sizes[key] == sizes[pair[0]] * sizes[pair[1]]:
            found[key] = found[pair[0]] * found[pair[1]]
    return found


def _factors(value: int, sizes: Sizes) -> tuple[int, int] | None:
    """Two of the sizes whose product is ``value``."""
    return next(((one, value // one) for one in sizes if value % one == 0 and value // one in sizes), None)


KINDS = (
    StandInKind(_distinct, None),
    StandInKind(_distinct, 2),
    StandInKind(_summed, 2),
    StandInKind(_grouped, 5, divisors=True),
    StandInKind(_grouped, 2, divisors=True),
    StandInKind(_related, 2),
    StandInKind(_related, 2, divisors=True),
    StandInKind(_related, None),
    StandInKind(_multiplied, None),
)
"""In the order of trial. Small attributes are often dims or flags."""
