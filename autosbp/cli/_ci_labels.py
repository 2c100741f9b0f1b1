"""Labels of a trial in CI and of the trials it is compared with: branch names, read from the job's environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_MAX_LABEL_LENGTH = 200
"""Maximum length of a label in the service."""


@dataclass(frozen=True, slots=True)
class CiLabels:
    """``own``: label that the trial is stored under; ``baseline``: that of the trials it is compared with; or None."""

    own: str | None
    baseline: str | None


def resolve_labels(own: str | None, baseline: str | None, environment: Mapping[str, str]) -> CiLabels:
    """Return the given labels; where they are None, those that the CI job's environment variables imply.

    A pull or merge request gets the name of its ref, not of its source branch: a fork's branch may also be called main.
    It is compared with its target branch. Every other job is compared with the default branch if CI names it, else with
    its own label. Sources: "Default environment variables" of GitHub Actions; "Predefined CI/CD variables" of GitLab.
    """

    def first(*names: str) -> str | None:
        return next((environment[name][:_MAX_LABEL_LENGTH] for name in names if environment.get(name)), None)

    own = own or first("GITHUB_REF_NAME", "CI_MERGE_REQUEST_REF_PATH", "CI_COMMIT_BRANCH", "CI_COMMIT_TAG")
    meant = first("GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "CI_DEFAULT_BRANCH")
    return CiLabels(own, baseline or meant or own)
