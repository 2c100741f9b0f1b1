"""Mutations of valid inputs: of a document's tree, which keep most of it valid, and of bytes, which keep nothing valid.

All randomness comes from the given generator: the same seed produces the same inputs.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

_ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 2**31, 2**31 - 1, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 10**30),
    *(-(2**63), 10**400, 0.0, -0.0, 0.5, 1e-300, 5e-324, 1e300, 1.7976931348623157e308, float("inf"), float("nan")),
    *("", " ", "a", "0", "\x00", "\ud800", "é", "\u202e", "../../etc/passwd", "{}", "x" * 300, "batch", "__class__"),
    *([], {}, [[]], [0], {"ref": "x"}, {"sym": "batch"}, {"": None}, [None] * 50, {"schema": "autosbp.graph/1"}),
)
_TOKENS: tuple[bytes, ...] = (
    *(b"NaN", b"Infinity", b"1e999", b"-", b"1" * 500, b"0x10", b"null", b"true", b'"', b"\\u0000", b"\\ud800", b"\\"),
    *(
        b"[" * 200,
        b"{" * 200,
        b'{"a":' * 100,
        b"]",
        b"}",
        b",",
        b":",
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
    ),
)
_YAML_TOKENS: tuple[bytes, ...] = (
    *(b"&a ", b"*a", b"<<: *a\n", b"<<: [*a, *a]\n", b"!!binary x", b"!!python/object:os.system x", b"!!set ", b"!x "),
    *(
        b"2001-99-99",
        b"12:60:60",
        b".inf",
        b".nan",
        b"0o777",
        b"1_000",
        b"? [a]\n: b\n",
        b"---\n",
        b"...\n",
        b"%YAML 9.9\n",
    ),
    *(b"\t", b"- ", b"  ", b"\n", b"# ", b"|\n", b">-\n", b"~", b"yes", b"@", b"`", b"'", b"a: &x [*x]\n"),
)
_LONGEST = 2**22


def mutated_tree(document: Any, others: Sequence[Any], rng: random.Random) -> Any:
    """Copy with some places changed: values, members, their order, or parts grafted from ``others``."""
    changed = [copy.deepcopy(document)]  # the document itself can be replaced, too
    for _ in range(_num_changes(rng)):
        holder, key = _place(changed, rng)
        rng.choice(_CHANGES)(holder, key, others, rng)
    return changed[0] if changed else None


def mutated_bytes(data: bytes, others: Sequence[bytes], rng: random.Random, *, yaml: bool = False) -> bytes:
    """Copy with some bytes changed, dropped, repeated, or taken from ``others``."""
    tokens = _TOKENS + (_YAML_TOKENS if yaml else ())
    for _ in range(_num_changes(rng)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((1, 1, 2, 4, 16, 64, 1024)))
        kind = rng.randrange(7)
        if kind == 0 and start < len(data):
            middle = bytes([data[start] ^ 1 << rng.randrange(8)])
            end = start + 1
        elif kind == 1:
            middle = b""
        elif kind == 2:
            middle = data[start:end] * rng.choice((2, 3, 50))
        elif kind == 3:
            middle, end = rng.choice(tokens), start
        elif kind == 4:
            middle = rng.randbytes(end - start)
        elif kind == 5:
            other = rng.choice(others)
            cut = rng.randrange(len(other) + 1)
            middle = other[cut : cut + rng.choice((8, 64, 1024))]
        else:
            middle, end = b"", len(data) if rng.random() < 0.3 else end
        data = (data[:start] + middle + data[end:])[:_LONGEST]
    return data


def mutated_fields(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Protocol buffer message with some fields changed, at any depth; enclosing lengths stay correct."""
    for _ in range(_num_changes(rng)):
        data = _changed_field(data, rng.choice(others), rng)
    return data


def as_json(document: Any, rng: random.Random) -> bytes:
    """The document as JSON in a random style; values that JSON lacks are written as Python does."""
    indent, escaped = rng.choice((None, None, 1)), rng.random() < 0.5
    text = json.dumps(document, ensure_ascii=escaped, indent=indent)
    return text.encode(errors="surrogatepass")


def _num_changes(rng: random.Random) -> int:
    return rng.choice((1, 1, 1, 2, 2, 3, 5, 8))


def _place(holder: Any, rng: random.Random) -> tuple[Any, Any]:
    """Random place in a tree: a container and a key of it; deep places are as likely as shallow ones."""
    while True:
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        inner = holder[key]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.15:
            return holder, key
        holder = inner


_Change = Callable[[Any, Any, Sequence[Any], random.Random], None]


def _strange(holder: Any, key: Any, _: Sequence[Any], rng: random.Random) -> None:
    holder[key] = copy.deepcopy(rng.choice(_ODD_VALUES))


def _nudge(holder: Any, key: Any, _: Sequence[Any], rng: random.Random) -> None:
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        small = float(value) if abs(value) < 2**1000 else 0.0
        holder[key] = rng.choice(
            (value + 1, value - 1, value * 2, value // 2, -value, value + 2**31, small, str(value))
        )
    elif isinstance(value, float):
        holder[key] = rng.choice((value * 1e300 * 1e10, value * 1e-300, -value, value + 1, value * 3, repr(value)))
    elif isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        letter = rng.choice(("", "a", "0", ".", "*", "{i*1+0}", "\n", "\u00e9", "A" * 5000))
        holder[key] = value[:at] + letter + value[at + rng.randrange(2) :]
    elif isinstance(value, list):
        rng.shuffle(value)
    else:
        holder[key] = [list(pair) for pair in value.items()] if isinstance(value, dict) else {}


def _drop(holder: Any, key: Any, _: Sequence[Any], __: random.Random) -> None:
    del holder[key]
    if not holder and isinstance(holder, list):
        holder.append(None)


def _repeat(holder: Any, key: Any, _: Sequence[Any], rng: random.Random) -> None:
    if isinstance(holder, list):
        holder[key:key] = copy.deepcopy([holder[key]] * rng.choice((1, 2, 20)))
    else:
        holder[rng.choice(("", "extra", f"{key}_", "schema", "__proto__"))] = copy.deepcopy(holder[key])


def _swap(holder: Any, key: Any, _: Sequence[Any], rng: random.Random) -> None:
    other = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    holder[key], holder[other] = holder[other], holder[key]


def _graft(holder: Any, key: Any, others: Sequence[Any], rng: random.Random) -> None:
    there, at = _place([rng.choice(others)], rng)
    holder[key] = copy.deepcopy(there[at])


def _nest(holder: Any, key: Any, _: Sequence[Any], rng: random.Random) -> None:
    for _level in range(rng.choice((1, 2, 12, 70, 150))):
        holder[key] = [holder[key]] if rng.random() < 0.5 else {"a": holder[key]}


_CHANGES: tuple[_Change, ...] = (*(_strange,) * 3, *(_nudge,) * 4, _drop, _repeat, _swap, _graft, _nest)


_Field = tuple[int, int, int | bytes]
"""Field number, wire type, and value (number or bytes)."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_HEAVIEST = 64
_DEEPER = 0.9
"""Probability that a change goes into a nested field instead of changing this one."""
_NUMBERS = (0, 1, 2, 127, 128, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


def _changed_field(data: bytes, other: bytes, rng: random.Random) -> bytes:
    fields = _fields(data)
    if not fields:
        return data + rng.randbytes(rng.randrange(8))
    sizes = [min(len(value), _HEAVIEST) + 1 if isinstance(value, bytes) else 1 for _, _, value in fields]
    at = rng.choices(range(len(fields)), sizes)[0]  # most of a file is deeply nested
    number, kind, value = fields[at]
    if isinstance(value, bytes) and rng.random() < _DEEPER and _fields(value):
        fields[at] = (number, kind, _changed_field(value, other, rng))
        return _written(fields)
    change = rng.randrange(6)
    if change == 0:
        del fields[at]
    elif change == 1:
        fields[at:at] = [fields[at]] * rng.choice((1, 2, 30))
    elif change == 2:
        fields[at] = (rng.choice((1, 2, 3, 5, 7, 13, 14, 20, 999)), kind, value)
    elif change == 3:
        theirs = _fields(other) or fields
        fields[at] = rng.choice(theirs)
    elif isinstance(value, bytes):
        nested = value
        for _ in range(rng.choice((0, 1, 150))):
            nested = _written([(number, _BYTES, nested)])
        fields[at] = (number, kind, rng.choice((b"", value[: len(value) // 2], value * 3, rng.randbytes(9), nested)))
    else:
        fields[at] = (number, kind, rng.choice(_NUMBERS))
    return _written(fields)


def _fields(data: bytes) -> list[_Field] | None:
    """Fields of a message; None if the bytes are not a message."""
    found: list[_Field] = []
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if at < 0 or not key >> 3:
            return None
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            if at < 0:
                return None
            found.append((key >> 3, kind, value))
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, at = _varint(data, at)
        if size is None or at < 0 or at + size > len(data):
            return None
        part = data[at : at + size]
        found.append((key >> 3, kind, part if kind == _BYTES else int.from_bytes(part, "little")))
        at += size
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at a position and the position after it, or -1 if there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return 0, -1
        value |= (data[at] & 127) << shift
        at += 1
        if not data[at - 1] & 128:
            return value, at
    return 0, -1


def _written(fields: list[_Field]) -> bytes:
    parts = []
    for number, kind, value in fields:
        parts.append(_as_varint(number << 3 | kind))
        if isinstance(value, bytes):
            parts += [_as_varint(len(value)), value]
        elif kind == _VARINT:
            parts.append(_as_varint(value))
        else:
            size = 8 if kind == _FIXED64 else 4
            parts.append((value % 2 ** (8 * size)).to_bytes(size, "little"))
    return b"".join(parts)


def _as_varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
