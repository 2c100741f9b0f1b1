"""Small stand-ins for a call's tensors, on which its layouts are the same and soon found.

Equal sizes stay equal and larger ones larger. If the op does not accept a stand-in, or gives other output shapes than the
sizes say, the next kind is tried: integer attributes that are sizes shrink, too; then divisors of a size remain divisors
and products products, attributes among them; at last come the real sizes, where they are small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from autosbp.discovery._call import Call, Tensor
from autosbp.discovery._samples import Undiscoverable, samples
from autosbp.graph.attributes import integers

BASE = 6
MAX_ELEMENTS = 2**19
"""Elements of all tensors of a stand-in."""
Shapes = Sequence[tuple[int, ...]]
Sizes = Mapping[int, int]
NONE, EQUAL, DIVISORS = range(3)
"""Which integer attributes are sizes: none, those equal to a tensor's, or those that divide one."""


@dataclass(frozen=True)
class StandIn:
    """A call to search in, and one of other sizes to confirm the result in (None: the sizes are the real ones).

    ``sizes`` maps real sizes to those of ``call``; ``attributes`` tells whether integer attributes were mapped, too.
    """

    call: Call
    confirm: Call | None
    sizes: Sizes
    attributes: bool

    def grown(self, value: int) -> Call:
        """The call with what stands for the real size ``value`` twice as large."""
        return resized(self.call, {self.sizes[key]: size for key, size in enlarged(self.sizes, (value,)).items()},
                       self.attributes)  # fmt: skip


def stand_in(call: Call, outputs: Shapes) -> StandIn:
    """The first stand-in that the op accepts; ``outputs`` are the real output shapes. Raises ``Undiscoverable``."""
    failure = Undiscoverable("")
    for assign, kind in _KINDS:
        sizes, attributes = assign(_values(call, outputs, kind)), kind != NONE
        small, large = resized(call, sizes, attributes), resized(call, enlarged(sizes), attributes)
        if _elements(small) > MAX_ELEMENTS:
            continue
        try:
            _check(small, outputs, sizes)
            _check(large, outputs, enlarged(sizes))
        except Undiscoverable as error:
            failure = failure if str(failure) else error
            continue
        return StandIn(small, large, sizes, attributes)
    if _elements(call) > MAX_ELEMENTS:
        raise Undiscoverable(f"accepts no small stand-in: it {failure}")
    _check(call, outputs, {})
    return StandIn(call, None, {}, False)


def _check(call: Call, outputs: Shapes, sizes: Sizes) -> None:
    """The op runs, and its outputs have the sizes that stand for the real ones. Raises ``Undiscoverable``."""
    (sample,) = samples(call, 1)
    shapes = [tuple(out.shape) for out in sample.outputs]
    wanted = [tuple(sizes.get(size, size) for size in shape) for shape in outputs]
    if shapes != wanted:
        raise Undiscoverable(f"gives the shapes {shapes} where {wanted} are expected")


def resized(call: Call, sizes: Sizes, attributes: bool) -> Call:
    """The call with every size of its tensors, and with ``attributes`` every integer, replaced where ``sizes`` says."""

    def tensor(spec: Tensor) -> Tensor:
        high = spec.high if spec.high is None else min(spec.high, sizes.get(spec.high, max(sizes.values(), default=2)))
        return replace(spec, shape=tuple(sizes.get(size, size) for size in spec.shape), high=high)

    def number(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(number(item) for item in arg)
        return sizes.get(arg, arg) if attributes and type(arg) is int else arg

    return replace(
        call,
        args=number(call.args),
        kwargs={key: number(arg) for key, arg in call.kwargs.items()},
        tensors=tuple(tensor(spec) for spec in call.tensors),
    )


def _values(call: Call, outputs: Shapes, kind: int) -> list[int]:
    """The distinct sizes above 1, ascending; integer attributes that divide one are sizes, too, where ``kind`` says."""
    found = {size for shape in (*(spec.shape for spec in call.tensors), *outputs) for size in shape if size > 1}
    if kind == DIVISORS:
        numbers = {value for _, value in integers(call.args, call.kwargs) if value >= 2}
        found |= {value for value in numbers if any(size % value == 0 for size in found)}
    return sorted(found)


def _distinct(values: Sequence[int]) -> dict[int, int]:
    """Multiples of 6, in order."""
    return {value: BASE * (at + 1) for at, value in enumerate(values)}


def _related(values: Sequence[int]) -> dict[int, int]:
    """Multiples of 6, in order; products stay products, and a divisor of a size stays one."""
    found: dict[int, int] = {}
    last = 0
    for value in values:
        pair = _factors(value, found)
        if pair is not None:
            found[value] = found[pair[0]] * found[pair[1]]
        else:
            divisors = [small for size, small in found.items() if value % size == 0]
            candidate = last + BASE - last % BASE
            while any(candidate % divisor for divisor in divisors):
                candidate += BASE
            found[value] = candidate
        last = max(last, found[value])
    return found


def enlarged(sizes: Sizes, values: Sequence[int] | None = None) -> dict[int, int]:
    """The same with what stands for ``values`` (None: all) twice as large; products of two stay products."""
    found = {value: small * (2 if values is None or value in values else 1) for value, small in sizes.items()}
    for value in sorted(found):
        pair = _factors(value, sizes)
        if pair is not None and sizes[value] == sizes[pair[0]] * sizes[pair[1]]:
            found[value] = found[pair[0]] * found[pair[1]]
    return found


def _factors(value: int, sizes: Sizes) -> tuple[int, int] | None:
    """Two of the sizes whose product is ``value``."""
    return next(((one, value // one) for one in sizes if value % one == 0 and value // one in sizes), None)


def _elements(call: Call) -> int:
    return sum(prod(spec.shape) for spec in call.tensors)


_KINDS: tuple[tuple[Callable[[Sequence[int]], dict[int, int]], int], ...] = (
    (_distinct, NONE),
    (_distinct, EQUAL),
    (_related, EQUAL),
    (_related, DIVISORS),
    (_related, NONE),
)
