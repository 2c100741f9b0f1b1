"""What tests of the emulated cluster share."""

from __future__ import annotations

import pytest

from autosbp.testing.emulated import why_not


@pytest.fixture(scope="session")
def can_emulate() -> None:
    """Skips where this machine cannot emulate a cluster, and says why."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
