"""The door of the service: from a request's headers to its caller, or a refusal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import exists, select

from autosbp.errors import ServiceError
from service.access.caller import Caller, anybody, is_loopback
from service.access.rates import Rates
from service.access.tokens import Token
from service.db import Database
from service.models import KeyRow, now
from service.problems import ProblemError
from service.settings import Settings

_LOOK_AGAIN_S = 1.0
_MOST_SEEN = 10_000
_NOTED = (10.0, 1000.0)  # calls of strangers a second, and at once
_REALM = 'Bearer realm="autosbp"'


@dataclass(frozen=True, slots=True)
class _Known:
    """Whether any key was ever made, as it was seen at ``at_s``."""

    keys: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """A stored key, as it was at ``at_s``."""

    key: KeyRow
    at_s: float


class Gate:
    """Tells callers apart. Keys are needed as soon as one was ever made, where settings say so, and wherever the service
    listens on more than the loopback interface. What was read of a key is used for a second; so another process' changes are
    seen within one, this process' own at once. Thread-safe."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._always = settings.require_keys or not is_loopback(settings.host)
        self._known = _Known(False, -_LOOK_AGAIN_S)
        self._calls = Rates(settings.rate_limit_per_s, settings.rate_limit_burst)
        self._failures = Rates(1.0, settings.wrong_keys_burst)
        self._foreign = Rates(1.0, settings.wrong_keys_burst)
        self._strangers = Rates(*_NOTED)
        self._seen: dict[str, _Seen] = {}

    def check_start(self) -> None:
        """``ServiceError`` where everybody could reach a service that has no key to tell them apart."""
        if is_loopback(self._settings.host):
            return
        with self._database.read() as session:
            keys = session.scalars(select(KeyRow)).all()
        if not any(_is_valid(key, now()) for key in keys):
            raise ServiceError(
                f"listening on {self._settings.host} needs an API key, and this database has none that is valid: "
                "make one with 'autosbp keys create', or listen on 127.0.0.1"
            )

    def needs_keys(self) -> bool:
        """Whether a request needs a key; a first key that another process makes is seen within a second."""
        if self._always:
            return True
        if not self._known.keys and time.monotonic() - self._known.at_s >= _LOOK_AGAIN_S:
            with self._database.read() as session:
                self._known = _Known(bool(session.scalar(select(exists(select(KeyRow.id))))), time.monotonic())
        return self._known.keys

    def keys_changed(self) -> None:
        """This process made a key or ended one: from now on keys are needed, and read anew."""
        self._known = _Known(True, time.monotonic())
        self._seen.clear()

    def asks_database(self, headers: Mapping[str, str]) -> bool:
        """Whether ``admit`` would read the database, which is no work for an event loop."""
        if not (self._always or self._known.keys):
            return time.monotonic() - self._known.at_s >= _LOOK_AGAIN_S
        token = _token(headers)
        return token is not None and self._fresh(token.prefix) is None

    def admit(self, headers: Mapping[str, str], address: str) -> Caller:
        """The caller; ``ProblemError`` 401 or 429."""
        caller = self._keyed(headers, address) if self.needs_keys() else _local(headers, address)
        self._count(caller)
        return caller

    def visit(
        self, headers: Mapping[str, str], address: str, prefix: str | None, proves: Callable[[KeyRow], bool]
    ) -> Caller:
        """The caller of a page, who signed in with the key that ``prefix`` names, if ``proves`` says so of the stored one;
        ``ProblemError`` 401, 403 or 429."""
        caller = self._signed_in(address, prefix, proves) if self.needs_keys() else _local(headers, address)
        self._count(caller)
        return caller

    def is_noted(self, address: str, status: int) -> bool:
        """Whether a stranger's call is one for the audit log, so that nobody without a key fills it: of foreign ones (403) as
        many of an address as it may send wrong keys, and of all addresses together a thousand at once and ten a second."""
        if status == 403 and self._foreign.take(address):
            return False
        return not self._strangers.take("")

    def stands(self, caller: Caller) -> bool:
        """Whether a caller that was let in would be now: its key is still valid, or still none is needed."""
        if caller.prefix is None:
            return not self.needs_keys()
        key = self.named(caller.prefix)
        return key is not None and _is_valid(key, now())

    def sign_in(self, text: str, address: str) -> KeyRow:
        """The stored key of this text; ``ProblemError`` 401 or 429."""
        self._check_failures(address)
        token = Token.parse(text)
        key = None if token is None else self._find(token)
        if key is None:
            self._failures.take(address)
            raise _unknown()
        return key

    def _signed_in(self, address: str, prefix: str | None, proves: Callable[[KeyRow], bool]) -> Caller:
        if prefix is None:
            raise unauthorized("sign in with an API key to see this page", _REALM)
        seen = self._seen.get(prefix)
        if seen is None or not proves(seen.key):
            self._check_failures(address)
        key = self.named(prefix)
        if key is None or not proves(key):
            self._failures.take(address)
            raise unauthorized("the session has ended: sign in again", _REALM)
        if not _is_valid(key, now()):
            raise unauthorized("the API key of this session was revoked or has expired", _REALM)
        return Caller(key.tenant, key.id, frozenset(key.scopes.split()), address, key.prefix)

    def _count(self, caller: Caller) -> None:
        wait_s = self._calls.take(caller.name)
        if wait_s:
            raise too_many(wait_s, f"more than {self._settings.rate_limit_per_s:g} requests a second")

    def _check_failures(self, address: str) -> None:
        if wait_s := self._failures.empty(address):
            raise too_many(wait_s, f"too many requests from {address} without a valid key")

    def _keyed(self, headers: Mapping[str, str], address: str) -> Caller:
        token = _token(headers)
        known = None if token is None else self._was_right(token)
        if known is None:
            self._check_failures(address)
        if not headers.get("authorization"):
            self._failures.take(address)
            raise unauthorized("an API key is needed: Authorization: Bearer KEY", _REALM)
        key = None if token is None else self._find(token, known)
        if key is None:
            self._failures.take(address)
            raise _unknown()
        return Caller(key.tenant, key.id, frozenset(key.scopes.split()), address, key.prefix)

    def _was_right(self, token: Token) -> KeyRow | None:
        """The key if it was good before: who shares an address with somebody that guesses is not kept out with them."""
        seen = self._seen.get(token.prefix)
        return seen.key if seen is not None and token.matches(seen.key.salt, seen.key.secret_hash) else None

    def _find(self, token: Token, known: KeyRow | None = None) -> KeyRow | None:
        """The stored key, if it is valid; ``known`` is one that ``token`` is known to match."""
        key = self.named(token.prefix)
        salt, stored = ("", "") if key is None else (key.salt, key.secret_hash)
        right = (key is not None and key is known) or token.matches(salt, stored)
        return key if key is not None and right and _is_valid(key, now()) else None

    def named(self, prefix: str) -> KeyRow | None:
        """The key of this name, valid or not, as it is or was a moment ago."""
        seen = self._fresh(prefix)
        if seen is not None:
            return seen.key
        with self._database.read() as session:
            key = session.scalar(select(KeyRow).where(KeyRow.prefix == prefix))
        self._remember(key)
        return key

    def _fresh(self, prefix: str) -> _Seen | None:
        seen = self._seen.get(prefix)
        return seen if seen is not None and time.monotonic() - seen.at_s < _LOOK_AGAIN_S else None

    def _remember(self, key: KeyRow | None) -> None:
        if key is not None:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen[key.prefix] = _Seen(key, time.monotonic())


def _token(headers: Mapping[str, str]) -> Token | None:
    scheme, _, text = headers.get("authorization", "").partition(" ")
    return Token.parse(text.strip()) if scheme.lower() == "bearer" else None


def check_scope(caller: Caller, needed: tuple[str, ...]) -> None:
    """``ProblemError`` 403 unless the caller has one of the scopes."""
    if not caller.scopes & set(needed):
        words = " or ".join(needed)
        challenge = f'{_REALM}, error="insufficient_scope", scope="{" ".join(needed)}"'
        raise ProblemError(
            403,
            "forbidden",
            "The key may not do this",
            f"a key with scope {words} is needed",
            headers={"www-authenticate": challenge},
            scope=list(needed),
        )


def unauthorized(detail: str, challenge: str) -> ProblemError:
    """401: who calls is not known."""
    return ProblemError(
        401, "unauthorized", "A valid API key is needed", detail, headers={"www-authenticate": challenge}
    )


def _unknown() -> ProblemError:
    return unauthorized("the API key is unknown, revoked or expired", f'{_REALM}, error="invalid_token"')


def too_many(wait_s: float, detail: str) -> ProblemError:
    """429 with the seconds to wait."""
    seconds = str(max(1, round(wait_s + 0.5)))
    return ProblemError(429, "too-many-requests", "Too many requests", detail, headers={"retry-after": seconds})


def _is_valid(key: KeyRow, moment: datetime) -> bool:
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > moment)


def _local(headers: Mapping[str, str], address: str) -> Caller:
    """Without keys the Host header must name this machine: a web page elsewhere can make a browser send requests here
    under another name (DNS rebinding)."""
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if not is_loopback(name):
        detail = f"without API keys the service answers requests to this machine's own name only, not to {name!r}"
        raise ProblemError(403, "forbidden", "The host name is not this machine's", detail)
    return anybody(address)
