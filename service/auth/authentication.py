"""Authentication: from a request's headers to its caller, or a refusal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import exists, select

from autosbp.errors import ServiceError
from autosbp.service.auth.api_keys import ApiKey
from autosbp.service.auth.caller import Caller, anonymous_caller, is_loopback, rate_limit_address
from autosbp.service.auth.rate_limit import RateLimit
from autosbp.service.db import Database
from autosbp.service.models import KeyRow, now
from autosbp.service.problem_details import ProblemError
from autosbp.service.settings import Settings

_CACHE_S = 1.0
_MAX_CACHED_KEYS = 10_000
_AUDIT_RATE = (10.0, 1000.0)  # audited calls of strangers: per second, and in a burst
_REALM = 'Bearer realm="autosbp"'


@dataclass(frozen=True, slots=True)
class _KeysExist:
    """Whether any key exists, as read at ``at_s``."""

    keys: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class _CachedKey:
    """A stored key, as read at ``at_s``."""

    key: KeyRow
    at_s: float


class Authentication:
    """Identifies callers. Thread-safe.

    Keys are required once one was ever created, if the settings ask for them, and if the service listens on more than
    the loopback interface. Stored keys are cached for a second: changes by other processes take effect within that,
    changes by this process at once.
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._always = settings.require_keys or not is_loopback(settings.host)
        self._keys_exist = _KeysExist(False, -_CACHE_S)
        self._calls = RateLimit(settings.rate_limit_per_s, settings.rate_limit_burst)
        self._failures = RateLimit(1.0, settings.wrong_keys_burst)
        self._foreign_host_rate = RateLimit(1.0, settings.wrong_keys_burst)
        self._audit_rate = RateLimit(*_AUDIT_RATE)
        self._key_cache: dict[str, _CachedKey] = {}

    def check_start(self) -> None:
        """Raise ``ServiceError`` if the service is reachable from other machines without a valid key in the database."""
        if is_loopback(self._settings.host):
            return
        with self._database.read() as session:
            keys = session.scalars(select(KeyRow)).all()
        if not any(_is_valid(key, now()) for key in keys):
            raise ServiceError(
                f"listening on {self._settings.host} requires an API key, and the database has no valid one: create "
                "one with 'autosbp keys create --scopes read,search,trial,calibrate,admin', or listen on 127.0.0.1"
            )

    def needs_keys(self) -> bool:
        """Whether a request needs a key; a first key made by another process is noticed within a second."""
        if self._always:
            return True
        if not self._keys_exist.keys and time.monotonic() - self._keys_exist.at_s >= _CACHE_S:
            with self._database.read() as session:
                self._keys_exist = _KeysExist(bool(session.scalar(select(exists(select(KeyRow.id))))), time.monotonic())
        return self._keys_exist.keys

    def keys_changed(self) -> None:
        """Drop cached keys after this process created or revoked one; keys are required from then on."""
        self._keys_exist = _KeysExist(True, time.monotonic())
        self._key_cache.clear()

    def needs_database(self, headers: Mapping[str, str]) -> bool:
        """Whether ``admit`` would read the database, which must not run on an event loop."""
        if not (self._always or self._keys_exist.keys):
            return time.monotonic() - self._keys_exist.at_s >= _CACHE_S
        token = _parse_bearer(headers)
        return token is not None and self._cached_key(token.prefix) is None

    def authenticate(self, headers: Mapping[str, str], address: str) -> Caller:
        """Return the caller; raise ``ProblemError`` 401, 403 or 429."""
        caller = self._authenticate_key(headers, address) if self.needs_keys() else _local_caller(headers, address)
        self._check_rate(caller)
        return caller

    def authenticate_page(
        self, headers: Mapping[str, str], address: str, prefix: str | None, proves: Callable[[KeyRow], bool]
    ) -> Caller:
        """Return the caller of a page, who signed in with an API key.

        Args:
            headers: of the request.
            address: of the client.
            prefix: prefix of the key; None if nobody is signed in.
            proves: checks the session against the stored key.

        Raises:
            ProblemError: 401, 403 or 429.
        """
        caller = self._signed_in(address, prefix, proves) if self.needs_keys() else _local_caller(headers, address)
        self._check_rate(caller)
        return caller

    def should_audit(self, address: str, status: int) -> bool:
        """Whether to audit a stranger's call; limited, so that nobody without a key fills the audit log.

        Calls for a foreign host name (403) are limited per address as wrong keys are. All addresses together are
        limited to a burst of 1000 and 10 per second.
        """
        if status == 403 and self._foreign_host_rate.take(rate_limit_address(address)):
            return False
        return not self._audit_rate.take("")

    def is_still_admitted(self, caller: Caller) -> bool:
        """Whether an admitted caller is still admitted: its key is still valid, or still no key is needed."""
        if caller.prefix is None:
            return not self.needs_keys()
        key = self.named(caller.prefix)
        return key is not None and _is_valid(key, now())

    def sign_in(self, text: str, address: str) -> KeyRow:
        """Return the stored key for its text; raise ``ProblemError`` 401 or 429."""
        token = ApiKey.parse(text)
        key = None if token is None else self._valid_key(token)
        if key is None:
            raise self._count_failure(address, _invalid_key())
        return key

    def _signed_in(self, address: str, prefix: str | None, proves: Callable[[KeyRow], bool]) -> Caller:
        if prefix is None:
            raise unauthorized("sign in with an API key to see this page", _REALM)
        key = self.named(prefix)
        if key is None or not proves(key):
            raise self._count_failure(address, unauthorized("the session has expired; sign in again", _REALM))
        if not _is_valid(key, now()):
            raise unauthorized("the API key of this session was revoked or has expired", _REALM)
        return Caller(key.tenant, key.id, frozenset(key.scopes.split()), address, key.prefix)

    def _check_rate(self, caller: Caller) -> None:
        wait_s = self._calls.take(caller.name)
        if wait_s:
            raise too_many(wait_s, f"more than {self._settings.rate_limit_per_s:g} requests per second")

    def _count_failure(self, address: str, refusal: ProblemError) -> ProblemError:
        """Build the refusal of a caller without a valid key: ``refusal``, or 429 after too many tries of its address.

        Valid keys are accepted from any address. 256 random bits cannot be guessed, so others behind the same address
        need not be locked out with an attacker.
        """
        wait_s = self._failures.take(rate_limit_address(address))
        return too_many(wait_s, f"too many requests from {address} without a valid key") if wait_s else refusal

    def _authenticate_key(self, headers: Mapping[str, str], address: str) -> Caller:
        if not headers.get("authorization"):
            raise self._count_failure(
                address, unauthorized("an API key is required: Authorization: Bearer KEY", _REALM)
            )
        token = _parse_bearer(headers)
        key = None if token is None else self._valid_key(token)
        if key is None:
            raise self._count_failure(address, _invalid_key())
        return Caller(key.tenant, key.id, frozenset(key.scopes.split()), address, key.prefix)

    def _valid_key(self, token: ApiKey) -> KeyRow | None:
        """The stored key if it is valid and the secret matches."""
        key = self.named(token.prefix)
        salt, stored = ("", "") if key is None else (key.salt, key.secret_hash)
        return key if token.matches(salt, stored) and key is not None and _is_valid(key, now()) else None

    def named(self, prefix: str) -> KeyRow | None:
        """The key with this prefix, valid or not; cached for up to a second."""
        seen = self._cached_key(prefix)
        if seen is not None:
            return seen.key
        with self._database.read() as session:
            key = session.scalar(select(KeyRow).where(KeyRow.prefix == prefix))
        self._cache_key(key)
        return key

    def _cached_key(self, prefix: str) -> _CachedKey | None:
        seen = self._key_cache.get(prefix)
        return seen if seen is not None and time.monotonic() - seen.at_s < _CACHE_S else None

    def _cache_key(self, key: KeyRow | None) -> None:
        if key is not None:
            if len(self._key_cache) >= _MAX_CACHED_KEYS:
                self._key_cache.clear()
            self._key_cache[key.prefix] = _CachedKey(key, time.monotonic())


def _parse_bearer(headers: Mapping[str, str]) -> ApiKey | None:
    scheme, _, text = headers.get("authorization", "").partition(" ")
    return ApiKey.parse(text.strip()) if scheme.lower() == "bearer" else None


def check_scope(caller: Caller, needed: tuple[str, ...]) -> None:
    """Raise ``ProblemError`` 403 unless the caller has one of the scopes."""
    if not caller.scopes & set(needed):
        words = " or ".join(needed)
        challenge = f'{_REALM}, error="insufficient_scope", scope="{" ".join(needed)}"'
        raise ProblemError(
            403,
            "forbidden",
            "The key lacks a scope",
            f"a key with scope {words} is required",
            headers={"www-authenticate": challenge},
            scope=list(needed),
        )


def unauthorized(detail: str, challenge: str) -> ProblemError:
    """401: the caller is not known."""
    return ProblemError(
        401, "unauthorized", "A valid API key is required", detail, headers={"www-authenticate": challenge}
    )


def _invalid_key() -> ProblemError:
    return unauthorized("the API key is unknown, revoked or expired", f'{_REALM}, error="invalid_token"')


def too_many(wait_s: float, detail: str) -> ProblemError:
    """429 with the seconds to wait."""
    seconds = str(max(1, round(wait_s + 0.5)))
    return ProblemError(429, "too-many-requests", "Too many requests", detail, headers={"retry-after": seconds})


def _is_valid(key: KeyRow, moment: datetime) -> bool:
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > moment)


def _local_caller(headers: Mapping[str, str], address: str) -> Caller:
    """The caller of a service without keys; the Host header must name this machine.

    Otherwise a web page elsewhere could make a browser send requests here under another name (DNS rebinding).
    """
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if not is_loopback(name):
        detail = f"without API keys the service accepts only loopback host names, not {name!r}"
        raise ProblemError(403, "forbidden", "Host name not allowed", detail)
    return anonymous_caller(address)
