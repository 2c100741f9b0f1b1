from __future__ import annotations

from collections.abc import Callable

import pytest

from autosbp.search import SEARCHERS, Searcher
from autosbp.testing.searcher_conformance import CHECKS

pytestmark = pytest.mark.integration


@pytest.mark.some(3)
@pytest.mark.parametrize("name", sorted(SEARCHERS))
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_searcher_conforms(name: str, check: Callable[[Searcher], None]) -> None:
    check(SEARCHERS[name])
