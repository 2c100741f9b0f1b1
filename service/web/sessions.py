"""Browser sessions of people who signed in with an API key: a cookie that names the key but does not contain it.

The cookie is ``PREFIX.END.NONCE.PROOF``. The proof is HMAC-SHA256 of the rest and of the stored key record, under a
secret of this installation. Reading the cookie therefore yields no API key, and reading the database is not enough to
forge a cookie. A session ends with its time, with the key, or with the secret. Sessions that are signed out of earlier
are recorded in the database until their time ends. That a session is not recorded is cached for a second, so other
processes notice a sign-out within that.
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
from datetime import UTC, datetime
from pathlib import Path

from autosbp.service.db import Database
from autosbp.service.models import EndedSessionRow, KeyRow
from autosbp.service.services._queries import find, insert_if_absent

COOKIE = "autosbp_session"
LIFETIME_S = 12 * 3600
_FORM = re.compile(r"([a-z0-9]{8})\.(\d{1,12})\.([A-Za-z0-9_-]{22})\.([0-9a-f]{64})")
_SECRET_BYTES = 32
_CACHE_S = 1.0
_MOST_SEEN = 10_000


@dataclass(frozen=True, slots=True)
class Session:
    """The content of a cookie."""

    prefix: str
    end_s: int
    nonce: str
    proof: str

    def __str__(self) -> str:
        return f"{self.prefix}.{self.end_s}.{self.nonce}.{self.proof}"

    @property
    def id(self) -> str:
        """Id of the session in the database, from which no cookie can be made."""
        return hashlib.sha256(self.nonce.encode()).hexdigest()

    @staticmethod
    def parse(text: str) -> Session | None:
        """Parse a cookie; None if it has another format."""
        found = _FORM.fullmatch(text)
        return None if found is None else Session(found[1], int(found[2]), found[3], found[4])


class Sessions:
    """Creates, checks and ends sessions. Processes with the same ``path`` and ``database`` share them. Thread-safe.

    Args:
        path: file of the secret, created when first needed.
        database: where ended sessions are recorded.
        clock: seconds since 1970.
    """

    def __init__(self, path: Path, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._path, self._database, self._clock = path, database, clock
        self._secret: bytes | None = None
        self._open_cache: dict[str, float] = {}

    def begin(self, key: KeyRow) -> Session:
        """Start a session for the holder of this key."""
        end_s, nonce = int(self._clock()) + LIFETIME_S, secrets.token_urlsafe(16)
        return Session(key.prefix, end_s, nonce, self._proof(key, end_s, nonce))

    def is_valid(self, session: Session, key: KeyRow) -> bool:
        """Whether the session belongs to this key and installation, and has not ended."""
        right = hmac.compare_digest(session.proof, self._proof(key, session.end_s, session.nonce))
        return right and self._clock() < session.end_s and not self._was_ended(session, key)

    def end(self, session: Session, key: KeyRow) -> None:
        """End a session of this key, also for copies of its cookie; do nothing if it is invalid or has ended."""
        if self.is_valid(session, key):
            row = EndedSessionRow(id=session.id, expires_at=datetime.fromtimestamp(session.end_s, UTC))
            with self._database.of(key.tenant).write() as stored:
                insert_if_absent(stored, row)
            self._open_cache.pop(session.id, None)

    def _was_ended(self, session: Session, key: KeyRow) -> bool:
        if time.monotonic() - self._open_cache.get(session.id, -_CACHE_S) < _CACHE_S:
            return False
        with self._database.of(key.tenant).read() as stored:
            if find(stored, EndedSessionRow, session.id) is not None:
                return True
        if len(self._open_cache) >= _MOST_SEEN:
            self._open_cache.clear()
        self._open_cache[session.id] = time.monotonic()
        return False

    def _proof(self, key: KeyRow, end_s: int, nonce: str) -> str:
        if self._secret is None:
            self._secret = _secret(self._path)
        said = f"{key.prefix}.{end_s}.{nonce}.{key.salt}.{key.secret_hash}"
        return hmac.new(self._secret, said.encode(), hashlib.sha256).hexdigest()


def _secret(path: Path) -> bytes:
    """Read the secret, creating it if needed: a file only the owner can read, published atomically; the first one stays."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        mine = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
        try:
            os.link(mine, path)
        except FileExistsError:
            pass  # another process was faster
        finally:
            mine.unlink()
    return path.read_bytes()
