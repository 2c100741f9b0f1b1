"""Large dictionary keys with a cached hash."""

from __future__ import annotations

from collections.abc import Hashable


class HashedKey:
    """A large key, compared by content; its hash is computed once."""

    __slots__ = ("_content", "_hash")

    def __init__(self, content: Hashable) -> None:
        self._content, self._hash = content, hash(content)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, HashedKey) and self._hash == other._hash and self._content == other._content
