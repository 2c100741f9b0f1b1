"""What tests of the emulated cluster share."""

from __future__ import annotations

import os
import subprocess

import pytest

from autosbp.testing.emulated import unavailable_reason


@pytest.fixture(scope="session")
def can_emulate() -> None:
    """Skips where this machine cannot emulate a cluster, and says why. In CI (``CI=true``) that fails, unless it is the
    machine that allows no namespaces, or not to us."""
    reason = unavailable_reason()
    if reason is None:
        return
    if os.environ.get("CI") == "true" and allows_namespaces():
        pytest.fail(f"network namespaces can be made here, as root, but in CI these tests would be skipped: {reason}")
    pytest.skip(reason)


def allows_namespaces() -> bool:
    """Whether the kernel gives root a network namespace, whatever tools there are for more."""
    if os.geteuid() != 0:
        return False
    try:
        return subprocess.run(["unshare", "--net", "true"], capture_output=True, timeout=30).returncode == 0
    except OSError:
        return False
