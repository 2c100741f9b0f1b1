"""The caller of a request: tenant, key, and what the key allows."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from autosbp.service.models import DEFAULT_TENANT

_IPV6_PREFIX = 64  # network size that a provider usually assigns to a customer
SCOPES = ("read", "search", "trial", "calibrate", "admin")
"""Scopes of API keys; none includes another.

``read``: every GET. ``search``: models, clusters, searches, analyses. ``calibrate``, ``trial``: work that occupies a
cluster. ``admin``: the tenant's keys and audit log, and the metrics.
"""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request; ``key_id`` and ``prefix`` (the key's lookup name) are None if no key is needed."""

    tenant: str
    key_id: str | None
    scopes: frozenset[str]
    address: str
    prefix: str | None = None

    @property
    def name(self) -> str:
        """Key under which limits count calls."""
        return self.key_id or self.address


def anonymous_caller(address: str) -> Caller:
    """The caller of a service that needs no keys; has all scopes."""
    return Caller(DEFAULT_TENANT, None, frozenset(SCOPES), address)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def rate_limit_address(address: str) -> str:
    """Unit in which limits count an address; IPv6 by its /64, as each customer of a provider has a whole one."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # from a test, or a proxy's name for an unknown client
        return address
    return str(ipaddress.ip_network((found, _IPV6_PREFIX), strict=False)) if found.version == 6 else address
