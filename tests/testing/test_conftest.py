"""In CI, tests of the emulated cluster are not skipped where they could run."""

from __future__ import annotations

import pytest

from tests.testing import conftest

pytestmark = pytest.mark.integration

REASON = "an emulated cluster requires the program 'tc' (Debian: apt-get install iproute2)"
check = conftest.can_emulate.__wrapped__  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("ci", "namespaces", "outcome"),
    [("true", True, pytest.fail.Exception), ("true", False, pytest.skip.Exception), ("", True, pytest.skip.Exception)],
)
def test_missing_tools_fail_in_ci_if_namespaces_are_available(
    monkeypatch: pytest.MonkeyPatch, ci: str, namespaces: bool, outcome: type[Exception]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(conftest, "unavailable_reason", lambda: REASON)
    monkeypatch.setattr(conftest, "allows_namespaces", lambda: namespaces)
    with pytest.raises(outcome, match="apt-get install iproute2"):
        check()


def test_namespaces_are_not_checked_if_emulation_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(conftest, "unavailable_reason", lambda: None)
    monkeypatch.setattr(conftest, "allows_namespaces", lambda: pytest.fail("asked"))
    check()


def test_where_a_cluster_can_be_emulated_there_are_namespaces() -> None:
    assert conftest.allows_namespaces() or conftest.unavailable_reason() is not None
