"""Strict reading and canonical writing of JSON and YAML documents.

A document is read field by field: each accessor raises ``InputError`` with the field's path, the value and the limit.
``canonical`` is the byte form that hashes are computed from.
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


HASH_DIGITS = 16
"""Number of hex digits of the hashes in ids of documents: a prefix of the full digest."""
FULL_DIGEST_DIGITS = 64


def digest(document: object, length: int = HASH_DIGITS) -> str:
    """The first ``length`` hex digits of the SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(document)).hexdigest()[:length]


def tagged_number(value: float) -> float | dict[str, str]:
    """A number as strict JSON: itself if it is finite, else ``{"float": "Infinity"}``, ``"-Infinity"`` or ``"NaN"``."""
    if math.isfinite(value):
        return value
    return {"float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}


NON_FINITE: Mapping[str, float] = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
"""Values of ``{"float": name}``. NaN is one object, so that equal documents have equal arguments."""


def loads(text: str | bytes, what: str = "document", *, checks_names: bool = True) -> Any:
    """Parse JSON strictly.

    Args:
        text: the JSON text.
        what: field named by errors.
        checks_names: whether to reject duplicate names; our own files do not need this check, which adds 50 % to the
            time of parsing.

    Raises:
        InputError: for ``what``, if the text has syntax errors, NaN, infinity (1e999, too) or unpaired surrogates; for
            a name that an object has twice.
    """

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise InputError(what, number, "expected finite numbers")
        return value

    try:
        hook = _unique_members if checks_names else None
        document = json.loads(text, parse_constant=finite, parse_float=finite, object_pairs_hook=hook)
        if (b"\\u" in text or b"\xed" in text) if isinstance(text, bytes) else "\\u" in text:
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except UnicodeEncodeError as error:
        raise InputError(what, ascii(error.object[error.start]), "expected valid Unicode in strings") from None
    except (ValueError, RecursionError) as error:
        raise InputError(what, str(error), "expected valid JSON") from None


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; refuse duplicate names, of which JSON readers take the first, the last, or none."""
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise InputError(twice, members[twice], "duplicate name in an object")
    return members


def read_file(path: Path) -> Any:
    """Parse a ``.json``, ``.yaml`` or ``.yml`` file of at most ``MAX_JSON_BYTES`` or ``MAX_YAML_BYTES``."""
    is_yaml = path.suffix in (".yaml", ".yml")
    most = MAX_YAML_BYTES if is_yaml else MAX_JSON_BYTES
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
        text = data.decode("utf-8-sig")  # some editors write a byte order mark
    except (OSError, ValueError) as error:
        raise InputError("file", str(path), f"expected a readable text file ({error})") from None
    if len(data) > most:
        raise InputError("file", str(path), f"at most {most} bytes are read")
    return loads_yaml(text, str(path)) if is_yaml else loads(text, str(path))


def loads_yaml(text: str, what: str = "document") -> Any:
    """Parse YAML of plain values; raise ``InputError`` for any error."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # includes invalid dates and numbers
        raise InputError(what, str(error), "expected valid YAML") from None


def read_trusted_yaml(path: Path) -> Any:
    """Parse a trusted YAML file with libyaml if available: ten times as fast, but only the stack limits nesting."""
    text = path.read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders


class _Loader(yaml.SafeLoader):
    """Safe loader that limits merges (``<<``) and rejects unpaired surrogates.

    The size of nested merges grows as a product, so a small file could fill the memory.
    """

    def construct_scalar(self, node: Any) -> Any:
        """Construct a scalar; raise ``UnicodeEncodeError`` for unpaired surrogates."""
        value = super().construct_scalar(node)
        value.encode()
        return value

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Expand merges; raise ``ConstructorError`` beyond ``_MAX_MERGED`` members."""
        super().flatten_mapping(node)
        if len(node.value) > _MAX_MERGED:
            problem = f"expected at most {_MAX_MERGED} members from YAML merges"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


# YAML 1.1 reads 1e9, 1.0e9 and 1e-6 as texts, because their exponent has no sign or the mantissa no point; YAML 1.2 and
# JSON read them as numbers.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+\Z"), list("-+.0123456789")
)


class Fields:
    """One mapping of a document, with accessors that raise ``InputError`` naming the field.

    With ``schema``, ``NAME/VERSION``, the mapping's field ``schema`` must equal it, because other kinds and versions
    have other fields.
    """

    def __init__(self, data: object, path: str, allowed: Iterable[str], schema: str | None = None) -> None:
        if not isinstance(data, Mapping):
            raise InputError(path or "document", data, "expected a mapping")
        self.data, self.path = data, path
        if schema is not None and self.raw("schema") != schema:
            raise InputError(self.at("schema"), data["schema"], f"expected {schema!r}, the version this release reads")
        known = set(allowed)
        for key in data:
            if key not in known:
                raise InputError(
                    self.at(str(key) or "''"), data[key], (f"unknown field; known fields: {', '.join(sorted(known))}")
                )

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
            raise InputError(self.at(key), value, "expected a non-empty string of at most 4096 characters")
        if choices is not None and value not in choices:
            raise InputError(self.at(key), value, f"expected one of {', '.join(choices)}")
        return value

    def boolean(self, key: str, default: Any = ...) -> bool:
        value = self.raw(key, default)
        if type(value) is not bool:
            raise InputError(self.at(key), value, "expected true or false")
        return value

    def integer(self, key: str, default: Any = ..., low: int = 0, high: int = MAX_INT) -> int:
        return check_integer(self.at(key), self.raw(key, default), low, high)

    def number(self, key: str, default: Any = ..., low: float = 0.0, high: float = math.inf) -> float:
        value = as_float(self.raw(key, default))
        if value is None or not low <= value <= high:
            raise InputError(self.at(key), self.data.get(key), f"expected a number in [{low:g}, {high:g}]")
        return value

    def positive(self, key: str, default: Any = ...) -> float:
        value = as_float(self.raw(key, default))
        if value is None or not 0 < value < math.inf:
            raise InputError(self.at(key), self.data.get(key), "expected a positive finite number")
        return value

    def rate(self, key: str) -> float:
        """A rate in units per second: at least 1, because lower rates never finish, and at most ``MAX_RATE``."""
        return self.number(key, low=1.0, high=MAX_RATE)

    def sequence(self, key: str, default: Any = ...) -> Sequence[Any]:
        value = self.raw(key, default)
        if not isinstance(value, (list, tuple)):
            raise InputError(self.at(key), value, "expected a list")
        return value

    def mapping(self, key: str, default: Any = ...) -> Mapping[str, Any]:
        value = self.raw(key, default)
        if not isinstance(value, Mapping):
            raise InputError(self.at(key), value, "expected a mapping")
        return value


def read_nested(path: str, read: Callable[[Any], Read], data: object) -> Read:
    """``read(data)`` for a nested document: its errors name fields below ``path``."""
    try:
        return read(data)
    except InputError as error:
        raise InputError(f"{path}.{error.field}", error.value, error.limit) from None


def as_float(value: object) -> float | None:
    """A number as a float; None for anything else, and for an integer beyond the range of floats."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def check_integer(field: str, value: object, low: int, high: int) -> int:
    """``value`` as an int in ``[low, high]``; raise ``InputError`` naming ``field`` for others."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(field, value, f"expected an integer in [{low}, {high}]")
    return value
