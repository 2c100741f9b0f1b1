"""The text of an API key: ``asbp_PREFIX_SECRET``. The prefix names the key; the secret has 256 random bits.

What is stored of a secret is HMAC-SHA256 keyed with the key's own random salt. A slow hash makes guessing weak passwords
dear; nobody guesses 256 random bits, so a fast one serves every request.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass

_FORM = re.compile(r"asbp_([a-z0-9]{8})_([A-Za-z0-9_-]{43})")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True)
class Token:
    """One key's text in its parts."""

    prefix: str
    secret: str

    def __str__(self) -> str:
        return f"asbp_{self.prefix}_{self.secret}"

    @staticmethod
    def new() -> Token:
        """A fresh random one."""
        return Token("".join(secrets.choice(_ALPHABET) for _ in range(8)), secrets.token_urlsafe(32))

    @staticmethod
    def parse(text: str) -> Token | None:
        """None for what has not the form of a key."""
        found = _FORM.fullmatch(text)
        return None if found is None else Token(found[1], found[2])

    def hashed(self, salt: str) -> str:
        """What is stored beside ``salt``."""
        return hmac.digest(salt.encode(), self.secret.encode(), "sha256").hex()

    def matches(self, salt: str, stored: str) -> bool:
        """Whether this is the secret that was stored; takes as long for a wrong one."""
        return hmac.compare_digest(self.hashed(salt), stored)
