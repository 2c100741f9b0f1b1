"""Large keys of dictionaries."""

from __future__ import annotations

from collections.abc import Hashable


class Hashed:
    """A large key, compared by content; its hash is worked out once."""

    __slots__ = ("_content", "_hash")

    def __init__(self, content: Hashable) -> None:
        self._content, self._hash = content, hash(content)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Hashed) and self._hash == other._hash and self._content == other._content
