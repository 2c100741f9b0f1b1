"""Who calls: a tenant, a key, and what the key may do."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from service.models import DEFAULT_TENANT

SCOPES = ("read", "search", "trial", "calibrate", "admin")
"""``read``: every GET. ``search``: models, clusters, searches, analyses. ``calibrate``, ``trial``: work that occupies a
cluster. ``admin``: the tenant's keys and audit log, and the metrics. No scope holds another."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever a request is from; ``key_id`` and ``prefix``, which is what the key is found by, are None where no key is
    needed."""

    tenant: str
    key_id: str | None
    scopes: frozenset[str]
    address: str
    prefix: str | None = None

    @property
    def name(self) -> str:
        """What limits count calls by."""
        return self.key_id or self.address


def anybody(address: str) -> Caller:
    """The caller of a service that needs no keys."""
    return Caller(DEFAULT_TENANT, None, frozenset(SCOPES), address)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
