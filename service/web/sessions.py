"""Sessions of people who signed in with an API key: a cookie that names the key, not the key itself.

The cookie is ``PREFIX.END.NONCE.PROOF``. The proof is HMAC-SHA256 over the rest and over what is stored of the key, under
a secret of this installation: whoever reads the cookie has no API key, whoever reads the database can make no cookie, and a
session ends with its time, with the key, or with the secret. One that is signed out of before its time is noted in the
database until then; that it was not is believed for a second, so another process knows it within one.
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

from service.db import Database
from service.models import EndedSessionRow, KeyRow
from service.services._store import find, insert_once

COOKIE = "autosbp_session"
LIFETIME_S = 12 * 3600
_FORM = re.compile(r"([a-z0-9]{8})\.(\d{1,12})\.([A-Za-z0-9_-]{22})\.([0-9a-f]{64})")
_SECRET_BYTES = 32
_LOOK_AGAIN_S = 1.0
_MOST_SEEN = 10_000


@dataclass(frozen=True, slots=True)
class Session:
    """What a cookie says."""

    prefix: str
    end_s: int
    nonce: str
    proof: str

    def __str__(self) -> str:
        return f"{self.prefix}.{self.end_s}.{self.nonce}.{self.proof}"

    @property
    def id(self) -> str:
        """What the database knows it by, which opens nothing."""
        return hashlib.sha256(self.nonce.encode()).hexdigest()

    @staticmethod
    def parse(text: str) -> Session | None:
        """None for what has not the form of a session."""
        found = _FORM.fullmatch(text)
        return None if found is None else Session(found[1], int(found[2]), found[3], found[4])


class Sessions:
    """Makes, checks and ends sessions. Processes that share ``path`` and ``database`` know each other's. Thread-safe.

    Args:
        path: of the secret, made when it is first needed.
        clock: seconds since 1970.
    """

    def __init__(self, path: Path, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._path, self._database, self._clock = path, database, clock
        self._secret: bytes | None = None
        self._open: dict[str, float] = {}

    def begin(self, key: KeyRow) -> Session:
        """A new session of whoever showed this key."""
        end_s, nonce = int(self._clock()) + LIFETIME_S, secrets.token_urlsafe(16)
        return Session(key.prefix, end_s, nonce, self._proof(key, end_s, nonce))

    def is_of(self, session: Session, key: KeyRow) -> bool:
        """Whether the session was begun here with this key, and has not ended."""
        right = hmac.compare_digest(session.proof, self._proof(key, session.end_s, session.nonce))
        return right and self._clock() < session.end_s and not self._was_ended(session, key)

    def end(self, session: Session, key: KeyRow) -> None:
        """End a session of this key, wherever its cookie is; one that is none, or has ended, is left alone."""
        if self.is_of(session, key):
            row = EndedSessionRow(id=session.id, expires_at=datetime.fromtimestamp(session.end_s, UTC))
            with self._database.of(key.tenant).write() as stored:
                insert_once(stored, row)
            self._open.pop(session.id, None)

    def _was_ended(self, session: Session, key: KeyRow) -> bool:
        if time.monotonic() - self._open.get(session.id, -_LOOK_AGAIN_S) < _LOOK_AGAIN_S:
            return False
        with self._database.of(key.tenant).read() as stored:
            if find(stored, EndedSessionRow, session.id) is not None:
                return True
        if len(self._open) >= _MOST_SEEN:
            self._open.clear()
        self._open[session.id] = time.monotonic()
        return False

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
