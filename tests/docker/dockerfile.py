"""The instructions of ``docker/Dockerfile``, as far as that uses the language."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).parents[2] / "docker" / "Dockerfile"
IN_ORDER = ("ARG", "ENV", "RUN", "COPY", "WORKDIR", "USER")
ABOUT_IT = ("VOLUME", "EXPOSE", "HEALTHCHECK", "CMD")


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction and its arguments."""

    name: str
    text: str

    @property
    def pairs(self) -> dict[str, str]:
        """NAME=VALUE arguments of ARG and ENV."""
        return dict(each.split("=", 1) for each in shlex.split(self.text))

    @property
    def command(self) -> list[str]:
        """The JSON list of CMD and HEALTHCHECK."""
        found: list[str] = json.loads(self.text[self.text.index("[") :])
        return found


@dataclass(frozen=True, slots=True)
class Stage:
    """The steps from one FROM to the next; ``name`` is "" where nobody copies from it."""

    name: str
    base: str
    steps: tuple[Step, ...]

    def all(self, name: str) -> list[Step]:
        """The instructions of one name."""
        return [step for step in self.steps if step.name == name]

    def only(self, name: str) -> Step:
        """The one instruction of a name."""
        (found,) = self.all(name)
        return found


def stages() -> list[Stage]:
    """All of them, the image that is kept last."""
    text = PATH.read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    found: list[tuple[str, str, list[Step]]] = []
    for name, rest in lines:
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            found.append((alias, base, []))
            continue
        assert name in (*IN_ORDER, *ABOUT_IT), f"{name} is not known to the rehearsal"
        found[-1][2].append(Step(name, rest))
    return [Stage(alias, base, tuple(steps)) for alias, base, steps in found]


def first_key() -> list[str]:
    """The command that the file says has to come before the image's own."""
    (said,) = re.findall(r"^# docker run .* IMAGE (.*keys create.*)$", PATH.read_text(), re.MULTILINE)
    return said.split()
