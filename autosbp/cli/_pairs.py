"""Options of the form ``NAME=VALUE``."""

from __future__ import annotations

from autosbp.errors import InfeasibleError, InputError


def parse_pairs(texts: list[str], option: str, form: str, member: str) -> dict[str, str]:
    """Parse ``NAME=VALUE`` options; repeating a pair is fine, two values for a name are an ``InfeasibleError``."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise InputError(option, text, f"expected {form}")
        if pairs.setdefault(name, value) != value:
            raise InfeasibleError(f"{member}.{name}", value, None, f"{name} is already assigned {pairs[name]}")
    return pairs


def parse_stages(texts: list[str]) -> dict[str, int]:
    """Parse ``NAME=K`` options with stage numbers."""
    pairs = parse_pairs(texts, "--stage", "NAME=K", "stage_of")
    for name, stage in pairs.items():
        if not (stage.isascii() and stage.isdigit() and len(stage) < 10):
            raise InputError("--stage", f"{name}={stage}", "expected NAME=K with a stage number K from 0")
    return {name: int(stage) for name, stage in pairs.items()}
