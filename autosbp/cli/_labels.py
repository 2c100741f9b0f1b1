"""What a trial in CI is run for, and what it is compared with: branches, as the environment of a job tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_LONGEST = 200
"""Of a label in a service."""


@dataclass(frozen=True, slots=True)
class Labels:
    """``own`` is what a trial is stored under, ``baseline`` that of the trials that it is compared with; None is none."""

    own: str | None
    baseline: str | None


def labels(own: str | None, baseline: str | None, environment: Mapping[str, str]) -> Labels:
    """Those that are given, and else those of the CI job.

    A change that is proposed gets a name of its own, never that of the branch that it is on: a fork's may be called main, too.
    It is compared with the branch that it is meant for; all else with the default branch where CI tells it, else with
    itself. Sources: "Default environment variables" of GitHub Actions; "Predefined CI/CD variables" of GitLab.
    """

    def first(*names: str) -> str | None:
        return next((environment[name][:_LONGEST] for name in names if environment.get(name)), None)

    own = own or first("GITHUB_REF_NAME", "CI_MERGE_REQUEST_REF_PATH", "CI_COMMIT_BRANCH", "CI_COMMIT_TAG")
    meant = first("GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "CI_DEFAULT_BRANCH")
    return Labels(own, baseline or meant or own)
