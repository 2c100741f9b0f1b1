"""Format of API keys: ``asbp_PREFIX_SECRET``. The prefix identifies the key; the secret has 256 random bits.

The database stores HMAC-SHA256 of the secret, keyed with a random salt per key. A slow hash would only protect weak
passwords. Nobody guesses 256 random bits, so a fast hash is safe and serves every request.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass

_FORM = re.compile(r"asbp_([a-z0-9]{8})_([A-Za-z0-9_-]{43})")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key, split into its parts."""

    prefix: str
    secret: str

    def __str__(self) -> str:
        return f"asbp_{self.prefix}_{self.secret}"

    @staticmethod
    def new() -> ApiKey:
        """Generate a random key."""
        return ApiKey("".join(secrets.choice(_ALPHABET) for _ in range(8)), secrets.token_urlsafe(32))

    @staticmethod
    def parse(text: str) -> ApiKey | None:
        """Parse a key; None if the text has another format."""
        found = _FORM.fullmatch(text)
        return None if found is None else ApiKey(found[1], found[2])

    def hashed(self, salt: str) -> str:
        """The hash to store with ``salt``."""
        return hmac.digest(salt.encode(), self.secret.encode(), "sha256").hex()

    def matches(self, salt: str, stored: str) -> bool:
        """Compare with a stored hash in constant time."""
        return hmac.compare_digest(self.hashed(salt), stored)
