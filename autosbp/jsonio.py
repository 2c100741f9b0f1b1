"""Strict reading and canonical writing of our JSON and YAML files.

A document is read field by field: each accessor raises ``InputError`` with the field's path, the value and the limit.
``canonical`` is the one byte form that hashes are taken over.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from autosbp.errors import InputError

Read = TypeVar("Read")
MAX_INT = 2**53
MAX_RATE = 1e24
MAX_JSON_BYTES = 256 * 2**20
MAX_YAML_BYTES = 4 * 2**20
_MAX_MERGED = 10_000


def canonical(document: object) -> bytes:
    """The document as JSON with sorted keys, no spaces, and no NaN or infinity."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def digest(document: object, length: int = 16) -> str:
    """The first ``length`` hex digits of the SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(document)).hexdigest()[:length]


def loads(text: str | bytes, what: str = "document", *, checks_names: bool = True) -> Any:
    """Parse JSON; NaN, infinity (1e999, too), syntax errors and halves of characters are an ``InputError`` of ``what``, and
    names that stand twice in an object one of the name. Our own files need no such check, which takes half as long again."""

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise InputError(what, number, "JSON numbers must be finite")
        return value

    try:
        hook = _members_once if checks_names else None
        document = json.loads(text, parse_constant=finite, parse_float=finite, object_pairs_hook=hook)
        if (b"\\u" in text or b"\xed" in text) if isinstance(text, bytes) else "\\u" in text:
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except UnicodeEncodeError as error:
        raise InputError(what, ascii(error.object[error.start]), "strings must hold whole characters") from None
    except (ValueError, RecursionError) as error:
        raise InputError(what, str(error), "valid JSON is expected") from None


def _members_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; of two members of one name readers take the first, the last, or none."""
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise InputError(twice, members[twice], "each name is expected once in an object")
    return members


def read_file(path: Path) -> Any:
    """Parse a ``.json``, ``.yaml`` or ``.yml`` file of at most ``MAX_JSON_BYTES`` or ``MAX_YAML_BYTES``."""
    is_yaml = path.suffix in (".yaml", ".yml")
    most = MAX_YAML_BYTES if is_yaml else MAX_JSON_BYTES
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
        text = data.decode("utf-8-sig")  # some editors begin with a mark
    except (OSError, ValueError) as error:
        raise InputError("file", str(path), f"a readable text file is expected ({error})") from None
    if len(data) > most:
        raise InputError("file", str(path), f"at most {most} bytes are read")
    return loads_yaml(text, str(path)) if is_yaml else loads(text, str(path))


def loads_yaml(text: str, what: str = "document") -> Any:
    """Parse YAML of plain values; whatever is wrong with it is an ``InputError``."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # dates and numbers that are none, too
        raise InputError(what, str(error), "valid YAML is expected") from None


def read_shipped(path: Path) -> Any:
    """Parse a YAML file of our own by libyaml, where that is there: ten times as quick, but the stack is its only limit."""
    text = path.read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders


class _Loader(yaml.SafeLoader):
    """Merges (``<<``) grow with the product of what merges and what is merged: a file would fill the memory. Texts hold whole
    characters."""

    def construct_scalar(self, node: Any) -> Any:
        """A text, or what one is made of."""
        value = super().construct_scalar(node)
        value.encode()
        return value

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace merges by what they bring."""
        super().flatten_mapping(node)
        if len(node.value) > _MAX_MERGED:
            problem = f"merges bring at most {_MAX_MERGED} members"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


# YAML 1.1 takes 1e9, 1.0e9 and 1e-6 for texts, as exponents have no sign, or no point before them; YAML 1.2 and JSON take
# them for numbers.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+\Z"), list("-+.0123456789")
)


class Fields:
    """One mapping of a document, with accessors that name the field when they refuse. With a ``schema``, ``NAME/VERSION``, its
    field of that name says so: what is of another kind or version has other fields, too."""

    def __init__(self, data: object, path: str, allowed: Iterable[str], schema: str | None = None) -> None:
        if not isinstance(data, Mapping):
            raise InputError(path or "document", data, "a mapping is expected")
        self.data, self.path = data, path
        if schema is not None and self.raw("schema") != schema:
            raise InputError(self.at("schema"), data["schema"], f"{schema!r} is the version this release reads")
        known = set(allowed)
        for key in data:
            if key not in known:
                raise InputError(self.at(str(key) or "''"), data[key], f"known fields are {', '.join(sorted(known))}")

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None

    def raw(self, key: str, default: Any = ...) -> Any:
        if key in self.data:
            return self.data[key]
        if default is ...:
            raise InputError(self.at(key), None, "this field is required")
        return default

    def text(self, key: str, default: Any = ..., choices: Sequence[str] | None = None) -> str:
        value = self.raw(key, default)
        if not isinstance(value, str) or not value or len(value) > 4096:
            raise InputError(self.at(key), value, "a non-empty string of at most 4096 characters is expected")
        if choices is not None and value not in choices:
            raise InputError(self.at(key), value, f"one of {', '.join(choices)} is expected")
        return value

    def boolean(self, key: str, default: Any = ...) -> bool:
        value = self.raw(key, default)
        if type(value) is not bool:
            raise InputError(self.at(key), value, "true or false is expected")
        return value

    def integer(self, key: str, default: Any = ..., low: int = 0, high: int = MAX_INT) -> int:
        return check_integer(self.at(key), self.raw(key, default), low, high)

    def number(self, key: str, default: Any = ..., low: float = 0.0, high: float = math.inf) -> float:
        value = as_float(self.raw(key, default))
        if value is None or not low <= value <= high:
            raise InputError(self.at(key), self.data.get(key), f"a number in [{low:g}, {high:g}] is expected")
        return value

    def positive(self, key: str, default: Any = ...) -> float:
        value = as_float(self.raw(key, default))
        if value is None or not 0 < value < math.inf:
            raise InputError(self.at(key), self.data.get(key), "a positive finite number is expected")
        return value

    def rate(self, key: str) -> float:
        """Units a second: of less than one nothing would ever be done, and what is done in no time is no rate."""
        return self.number(key, low=1.0, high=MAX_RATE)

    def sequence(self, key: str, default: Any = ...) -> Sequence[Any]:
        value = self.raw(key, default)
        if not isinstance(value, (list, tuple)):
            raise InputError(self.at(key), value, "a list is expected")
        return value

    def mapping(self, key: str, default: Any = ...) -> Mapping[str, Any]:
        value = self.raw(key, default)
        if not isinstance(value, Mapping):
            raise InputError(self.at(key), value, "a mapping is expected")
        return value


def below(path: str, read: Callable[[Any], Read], data: object) -> Read:
    """``read(data)``, with the fields that it refuses named below ``path``: those of a document in another."""
    try:
        return read(data)
    except InputError as error:
        raise InputError(f"{path}.{error.field}", error.value, error.limit) from None


def as_float(value: object) -> float | None:
    """A number as a float; None for anything else, and for an integer beyond every float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def check_integer(field: str, value: object, low: int, high: int) -> int:
    """``value`` as an int in ``[low, high]``, or an ``InputError`` that names ``field``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(field, value, f"an integer in [{low}, {high}] is expected")
    return value
