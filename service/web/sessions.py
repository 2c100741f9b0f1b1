"""Sessions of people who signed in with an API key: a cookie that names the key, not the key itself.

The cookie is ``PREFIX.END.NONCE.PROOF``. The proof is HMAC-SHA256 over the rest and over what is stored of the key, under
a secret of this installation: whoever reads the cookie has no API key, whoever reads the database can make no cookie, and a
session ends with its time, with the key, or with the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.models import KeyRow

COOKIE = "autosbp_session"
LIFETIME_S = 12 * 3600
_FORM = re.compile(r"([a-z0-9]{8})\.(\d{1,12})\.([A-Za-z0-9_-]{22})\.([0-9a-f]{64})")
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Session:
    """What a cookie says."""

    prefix: str
    end_s: int
    nonce: str
    proof: str

    def __str__(self) -> str:
        return f"{self.prefix}.{self.end_s}.{self.nonce}.{self.proof}"

    @staticmethod
    def parse(text: str) -> Session | None:
        """None for what has not the form of a session."""
        found = _FORM.fullmatch(text)
        return None if found is None else Session(found[1], int(found[2]), found[3], found[4])


class Sessions:
    """Makes and checks sessions. Processes that share ``path`` know each other's.

    Args:
        path: of the secret, made when it is first needed.
        clock: seconds since 1970.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._secret: bytes | None = None

    def begin(self, key: KeyRow) -> Session:
        """A new session of whoever showed this key."""
        end_s, nonce = int(self._clock()) + LIFETIME_S, secrets.token_urlsafe(16)
        return Session(key.prefix, end_s, nonce, self._proof(key, end_s, nonce))

    def is_of(self, session: Session, key: KeyRow) -> bool:
        """Whether the session was begun here with this key, and has not ended."""
        right = hmac.compare_digest(session.proof, self._proof(key, session.end_s, session.nonce))
        return right and self._clock() < session.end_s

    def _proof(self, key: KeyRow, end_s: int, nonce: str) -> str:
        if self._secret is None:
            self._secret = _secret(self._path)
        said = f"{key.prefix}.{end_s}.{nonce}.{key.salt}.{key.secret_hash}"
        return hmac.new(self._secret, said.encode(), hashlib.sha256).hexdigest()


def _secret(path: Path) -> bytes:
    """The secret in a file that its owner alone can read. It gets its name when it is whole, and the first one stays."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        mine = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
        try:
            os.link(mine, path)
        except FileExistsError:
            pass  # another process was quicker
        finally:
            mine.unlink()
    return path.read_bytes()
