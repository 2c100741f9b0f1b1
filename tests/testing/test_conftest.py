"""In CI, tests of the emulated cluster are not skipped where they could run."""

from __future__ import annotations

import pytest

from tests.testing import conftest

REASON = "an emulated cluster needs the program 'tc' (Debian: apt-get install iproute2)"
check = conftest.can_emulate.__wrapped__  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("ci", "namespaces", "outcome"),
    [("true", True, pytest.fail.Exception), ("true", False, pytest.skip.Exception), ("", True, pytest.skip.Exception)],
)
def test_what_is_missing_fails_in_ci_where_namespaces_can_be_made(
    monkeypatch: pytest.MonkeyPatch, ci: str, namespaces: bool, outcome: type[Exception]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(conftest, "why_not", lambda: REASON)
    monkeypatch.setattr(conftest, "allows_namespaces", lambda: namespaces)
    with pytest.raises(outcome, match="apt-get install iproute2"):
        check()


def test_a_machine_that_can_emulate_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(conftest, "why_not", lambda: None)
    monkeypatch.setattr(conftest, "allows_namespaces", lambda: pytest.fail("asked"))
    check()


def test_where_a_cluster_can_be_emulated_there_are_namespaces() -> None:
    assert conftest.allows_namespaces() or conftest.why_not() is not None
